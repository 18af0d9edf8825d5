"""Notices of changed members: coalesced by group, and a bounded number for each event loop iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.member_notices import NOTICES_AT_ONCE, MemberNotices
from aerobee.clock import ManualClock
from aerobee.remoting.body.heartbeat import ConsumerData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer


class Members:
    """A registry whose notices run when the test says so, and connections that are each a member of the same groups."""

    def __init__(self, connections: int, groups: int) -> None:
        self.soon: list[Callable[[], None]] = []
        self.registry = ConsumerRegistry(clock=ManualClock(), call_soon=self.soon.append)
        self.peers = [FakePeer(("10.0.0.1", 40_000 + each)) for each in range(connections)]
        for each, peer in enumerate(self.peers):
            for group in range(groups):
                data = ConsumerData(f"g{group}", "CONSUME_PASSIVELY", "CLUSTERING", "x", ())
                self.registry.register(data, cast(Any, peer), f"c{each}", language=0, version=500)
        self.drain()

    def drain(self) -> list[int]:
        """Run what is due until nothing is; return how many notices each iteration sent."""
        sent = []
        while self.soon:
            before = self.sent
            self.soon.pop(0)()
            sent.append(self.sent - before)
        return sent

    @property
    def sent(self) -> int:
        return sum(len(peer.sent) for peer in self.peers)


def test_connections_that_close_together_are_one_notice_a_group() -> None:
    members = Members(connections=30, groups=40)
    before = members.sent
    for peer in members.peers[:20]:
        peer.close()
    assert members.sent == before, "nothing is sent while the connections close"
    rounds = members.drain()
    assert sum(rounds) == 10 * 40, "each member that stays learns of each of its groups once"
    assert max(rounds) <= NOTICES_AT_ONCE
    assert len(rounds) > 1


def test_a_group_that_changes_during_its_notices_is_notified_again() -> None:
    members = Members(connections=NOTICES_AT_ONCE + 10, groups=1)
    members.peers[0].close()
    members.soon.pop(0)()
    before = members.sent
    members.peers[1].close()
    members.drain()
    assert members.sent - before > NOTICES_AT_ONCE, "the rest of the first round, and a whole second one"
    assert all(peer.sent for peer in members.peers[2:])


def test_a_member_that_cannot_be_notified_does_not_end_the_others_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = Members(connections=5, groups=3)

    def broken(command: RemotingCommand) -> None:
        raise ValueError("a fault")

    cast(Any, members.peers[1]).invoke_oneway = broken
    for closed in (0, 2):
        before = members.sent
        members.peers[closed].close()
        members.drain()
        assert members.sent - before == 3 * sum(
            peer.is_open for peer in members.peers if peer is not members.peers[1]
        )
    assert "is not notified of a change" in caplog.text


def test_a_group_whose_members_are_unknown_does_not_end_the_others_notices() -> None:
    soon: list[Callable[[], None]] = []
    peer = FakePeer()
    faults = [ValueError("a fault")]

    def members_of(group: str) -> list[Any]:
        if group == "broken" and faults:
            raise faults.pop()
        return [peer]

    notices = MemberNotices(members_of=members_of, call_soon=soon.append)
    for rounds in ("broken", "g"), ("broken",):
        for group in rounds:
            notices.changed(group)
        while soon:
            soon.pop(0)()
    assert [command.text("consumerGroup") for command in peer.sent] == ["g", "broken"]


def test_a_client_refused_again_and_again_leaves_one_close_callback() -> None:
    members = Members(connections=1, groups=0)
    registry, peer = members.registry, cast(Any, FakePeer())

    def data(*topics: str) -> ConsumerData:
        wanted = tuple(SubscriptionData(topic, "*", sub_version=1) for topic in topics)
        return ConsumerData("g", "CONSUME_PASSIVELY", "CLUSTERING", "x", wanted)

    registry.register(data("a"), cast(Any, members.peers[0]), "c0", language=0, version=500)
    for _ in range(50):
        assert registry.refuse(data("b"), peer, "c1") is not None
        registry.register(data("a"), peer, "c1", language=0, version=500)
    assert len(peer._callbacks) <= 2, "one as a member, one as a client that was refused"
    assert registry.refuse(data("b"), peer, "c1") is not None
    peer.close()
    group = registry.group("g")
    assert group is not None
    assert not group.refused
