"""Members of one group that subscribe differently: seen, said once, refused where that is requested."""

from __future__ import annotations

import logging

import pytest

from aerobee.broker.consumer.subscription_conflict import conflict_between, wanted_of
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer
from tests.unit.broker.heartbeat_clients import Clients


def beat(clients: Clients, connection: FakePeer, client_id: str, **topics: str) -> RemotingCommand:
    subscriptions = [SubscriptionData.parse("%RETRY%g", "*", sub_version=1)]
    for topic, text in topics.items():
        kind, _, rest = text.rpartition(":")
        subscriptions.append(
            SubscriptionData.parse(topic, rest, expression_type=kind or "TAG", sub_version=1)
        )
    data = HeartbeatData(
        client_id, consumer_data_set=(ConsumerData("g", subscription_data_set=tuple(subscriptions)),)
    )
    return clients.call(connection, RemotingCommand(34, {}, data.encode(), version=513))


@pytest.mark.parametrize(
    ("mine", "theirs", "differ"),
    [
        ("A || B", "B||A", False),
        ("*", "", False),
        ("A", "B", True),
        ("A", "*", True),
        ("SQL92:a > 1", "SQL92: a > 1 ", False),
        ("SQL92:a > 1", "a > 1", True),
    ],
)
def test_texts_are_compared_by_what_they_ask_for(mine: str, theirs: str, differ: bool) -> None:
    clients = Clients()
    beat(clients, FakePeer(), "c1", T=mine)
    beat(clients, FakePeer(), "c2", T=theirs)
    group = clients.consumers.group("g")
    assert group is not None
    assert bool(group.conflicts) is differ


def test_a_conflict_names_both_clients_once(caplog: pytest.LogCaptureFixture) -> None:
    clients = Clients()
    first, second = FakePeer(), FakePeer()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert beat(clients, first, "c1", T="A").code == 0
            assert beat(clients, second, "c2", T="B", U="*").code == 0
    said = [record.getMessage() for record in caplog.records if "differ" in record.getMessage()]
    assert len(said) == 2, "each member once"
    assert "client c2 subscribes to B, client c1 to A" in said[0]
    group = clients.consumers.group("g")
    assert group is not None
    assert [(c.topic, c.client_id, c.other_client_id) for c in group.conflicts] == [("T", "c2", "c1")]


def test_the_policy_refuse_keeps_out_who_differs_until_the_others_are_gone() -> None:
    clients = Clients(subscription_conflict_policy="refuse")
    first, second = FakePeer(), FakePeer()
    beat(clients, first, "c1", T="A")
    refused = beat(clients, second, "c2", T="B")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "c1" in str(refused.remark)
    assert "c2" in str(refused.remark)
    assert clients.members("g") == ["c1"]
    group = clients.consumers.group("g")
    assert group is not None
    assert second in group.refused
    clients.consumers.connection_closed(first)  # type: ignore[arg-type]
    assert beat(clients, second, "c2", T="B").code == 0
    assert clients.members("g") == ["c2"]


def test_a_member_may_change_what_it_asks_for_when_it_is_alone() -> None:
    clients = Clients(subscription_conflict_policy="refuse")
    connection = FakePeer()
    assert beat(clients, connection, "c1", T="A").code == 0
    assert beat(clients, connection, "c1", T="B").code == 0


def test_a_topic_that_only_one_asks_for_is_a_difference() -> None:
    mine = wanted_of([SubscriptionData.parse("T", "*"), SubscriptionData.parse("U", "*")])
    theirs = wanted_of([SubscriptionData.parse("T", "*")])
    conflict = conflict_between("g", "c1", mine, [("c2", theirs)])
    assert conflict is not None
    assert (conflict.topic, conflict.other_expression) == ("U", "nothing")


def test_a_heartbeat_with_a_bad_expression_says_where_the_fault_is() -> None:
    clients = Clients(enable_property_filter=True)
    reply = beat(clients, FakePeer(), "c1", T="SQL92:a > ")
    assert reply.code == ResponseCode.SUCCESS
    assert "column 5" in str(reply.remark)
    assert clients.members("g") == ["c1"], "its other topics are served"
