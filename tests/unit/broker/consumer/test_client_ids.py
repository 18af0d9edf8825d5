"""Two living clients of one group under one client id: noticed, and only one of them gets the queues of that id."""

from __future__ import annotations

import logging

import pytest

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.clock import ManualClock
from aerobee.remoting.body.heartbeat import BROADCASTING, ConsumerData
from aerobee.remoting.body.member_list import held_by, holder_of
from aerobee.remoting.body.subscription import SubscriptionData
from tests.fakes import FakePeer

GROUP, ID = "g", "172.17.0.2@1"


class Members:
    """One broker's registry."""

    def __init__(self, model: str = "CLUSTERING") -> None:
        self.registry = ConsumerRegistry(clock=ManualClock(), call_soon=lambda run: run())
        self.model = model
        self.first, self.second, self.other = (FakePeer((f"10.0.0.{n}", 40_000 + n)) for n in (1, 2, 3))

    def beat(self, peer: FakePeer, started_ms: int, client_id: str = ID) -> None:
        subscription = SubscriptionData("orders", "*", sub_version=started_ms)
        data = ConsumerData(
            GROUP, "CONSUME_PASSIVELY", self.model, "CONSUME_FROM_FIRST_OFFSET", (subscription,)
        )
        self.registry.register(data, peer, client_id, language=0, version=500)  # type: ignore[arg-type]

    def ids(self, peer: FakePeer) -> list[str]:
        return self.registry.member_ids(GROUP, peer)  # type: ignore[arg-type]

    @property
    def shared(self) -> list[tuple[str, ...]]:
        return [each.addresses for each in self.registry.shared_ids()]


@pytest.fixture
def members() -> Members:
    return Members()


def test_a_shared_id_is_noticed_and_has_one_owner(members: Members, caplog: pytest.LogCaptureFixture) -> None:
    members.beat(members.first, 100)
    members.beat(members.other, 150, "another")
    members.beat(members.second, 200)
    assert members.shared == []  # the first one may have gone
    with caplog.at_level(logging.WARNING):
        members.first.sent.clear()
        members.second.sent.clear()
        assert members.ids(members.first) == [ID, "another"]  # the broker's notice makes it ask: it lives
    assert members.shared == [(members.first.address, members.second.address)]
    assert members.first.address in caplog.text
    assert members.second.address in caplog.text
    assert [each.code for each in (*members.first.sent, *members.second.sent)] == [40, 40]  # both rebalance
    seen = members.ids(members.second)
    assert ID not in seen
    assert holder_of(ID, seen) == members.first.address
    assert members.ids(members.other) == [ID, "another"]


def test_a_heartbeat_is_a_sign_of_life_too(members: Members) -> None:
    members.beat(members.first, 100)
    members.beat(members.second, 200)
    members.beat(members.first, 100)
    assert members.shared == [(members.first.address, members.second.address)]


def test_every_broker_sees_the_same_owner(members: Members) -> None:
    """In whatever order they joined: who subscribed first."""
    members.beat(members.second, 200)
    members.beat(members.first, 100)
    members.beat(members.second, 200)
    assert members.shared == [(members.first.address, members.second.address)]
    assert ID in members.ids(members.first)
    assert ID not in members.ids(members.second)


def test_the_other_takes_over_when_the_owner_leaves(members: Members) -> None:
    members.beat(members.first, 100)
    members.beat(members.second, 200)
    members.beat(members.first, 100)
    members.second.sent.clear()
    members.first.close("gone")
    assert members.shared == []
    assert [each.code for each in members.second.sent] == [40]
    assert members.ids(members.second) == [ID]


def test_a_client_that_reconnects_is_one_client(members: Members) -> None:
    members.beat(members.first, 100)
    again = FakePeer((members.first.host_port[0], 50_000))
    members.beat(again, 100)
    # A last question of the old connection arrives late: the same process, by host and time of subscription.
    assert members.ids(members.first) == [ID]
    assert members.ids(again) == [ID]
    assert members.shared == []


def test_an_old_connection_without_life_shares_nothing(members: Members) -> None:
    members.beat(members.first, 100)
    members.beat(
        members.second, 200
    )  # moved to another host, subscribed again; the first connection is half open
    for _ in range(5):
        members.beat(members.second, 200)
        assert members.ids(members.second) == [ID]
    assert members.shared == []


def test_three_clients_share_an_id(members: Members) -> None:
    members.beat(members.first, 100)
    members.beat(members.second, 200)
    members.beat(members.other, 300)
    for peer, started_ms in ((members.first, 100), (members.second, 200), (members.other, 300)):
        members.beat(peer, started_ms)
    assert members.shared == [(members.first.address, members.second.address, members.other.address)]
    assert [ID in members.ids(peer) for peer in (members.first, members.second, members.other)] == [
        True,
        False,
        False,
    ]
    members.first.close("gone")
    assert members.shared == [(members.second.address, members.other.address)]
    assert [ID in members.ids(peer) for peer in (members.second, members.other)] == [True, False]


def test_where_the_broker_shares_out_each_client_has_queues(members: Members) -> None:
    members.beat(members.first, 100)
    members.beat(members.other, 150, "zzz")
    members.beat(members.second, 200)
    members.beat(members.first, 100)
    group = members.registry.group(GROUP)
    assert group is not None
    positions = [
        group.ids.position_of(client_id, peer, group.client_ids())  # type: ignore[arg-type]
        for client_id, peer in ((ID, members.first), (ID, members.second), ("zzz", members.other))
    ]
    assert positions == [(0, 3), (1, 3), (2, 3)]
    assert group.ids.position_of("unknown", members.first, group.client_ids()) is None  # type: ignore[arg-type]


def test_members_of_a_broadcasting_group_may_share_an_id() -> None:
    members = Members(BROADCASTING)
    members.beat(members.first, 100)
    members.beat(members.second, 200)
    members.beat(members.first, 100)
    assert members.shared == []
    assert members.ids(members.second) == [ID]


def test_a_client_under_another_id_leaves_the_shared_one(members: Members) -> None:
    members.beat(members.first, 100)
    members.beat(members.second, 200)
    members.beat(members.first, 100)
    members.beat(members.second, 200, "its own now")
    assert members.shared == []
    assert sorted(members.ids(members.first)) == [ID, "its own now"]


def test_an_entry_for_a_held_id_is_no_other_clients() -> None:
    assert holder_of("c", [held_by("c", "10.0.0.1:5")]) == "10.0.0.1:5"
    assert holder_of("c", ["c", "c@unit", "d"]) is None
