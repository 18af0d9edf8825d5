"""A connection that closes with many pending requests costs their number, not its square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from aerobee.broker.admission.held_request import HeldRequest
from aerobee.broker.pop.pending_pops import PendingPop, PendingPops, _GroupCalls
from aerobee.broker.pull.pending_pulls import PendingPull, PendingPulls
from aerobee.broker.state.closed_peers import LEAVING_AT_ONCE, ClosedPeers
from aerobee.clock import ManualClock
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import ANY_QUEUE
from tests.fakes import FakePeer
from tests.unit.broker.pending_watch import NoWatch

COUNT = 2_000


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[how often one pending request was compared with another]: what looking through a list costs."""
    count = [0]

    def compared(self: object, other: object) -> bool:
        count[0] += 1
        return self is other

    for kind in (PendingPull, _GroupCalls):
        identity_hash = object.__hash__
        monkeypatch.setattr(kind, "__eq__", compared, raising=False)
        monkeypatch.setattr(kind, "__hash__", identity_hash, raising=False)
    return count


def pending_pulls(clock: ManualClock, soon: list[Callable[[], None]], peers: list[FakePeer]) -> PendingPulls:
    """COUNT pulls at one queue, of each peer in turn."""
    held = PendingPulls(clock=clock, call_soon=soon.append)
    for number in range(COUNT):
        peer = cast(Any, peers[number % len(peers)])
        pull = PendingPull(peer, b"frame", "g", "t", 0, 7, None, None, lambda pull: None, 11)
        held.hold(pull, 15)
    return held


def test_a_connection_with_many_pulls_closes_in_one_pass(comparisons: list[int]) -> None:
    gone, stays = FakePeer(), FakePeer()
    held = pending_pulls(ManualClock(), [], [gone, stays])
    gone.close()
    assert held.count == COUNT // 2
    assert [pull.peer for pull in held.by_queue["t", 0]] == [stays] * (COUNT // 2)
    assert comparisons[0] < COUNT
    stays.close()
    assert (held.count, held.frames_bytes, held.by_queue) == (0, 0, {})


def test_a_queue_that_is_released_or_reset_costs_one_pass(comparisons: list[int]) -> None:
    for release in (
        lambda held: held.release_queue("t", 0),
        lambda held: held.reset("g", "t", 0),
        lambda held: held.end(),
    ):
        held = pending_pulls(ManualClock(), [], [FakePeer()])
        release(held)
        assert (held.count, held.by_queue) == (0, {})
    assert comparisons[0] < COUNT


def test_pulls_that_expire_together_cost_one_pass(comparisons: list[int]) -> None:
    clock = ManualClock()
    held = pending_pulls(clock, [], [FakePeer()])
    clock.advance(16)
    assert (held.count, held.by_queue) == (0, {})
    assert comparisons[0] < COUNT


def test_a_connection_with_pops_of_many_groups_closes_in_one_pass(comparisons: list[int]) -> None:
    pops = PendingPops(clock=ManualClock(), call_soon=lambda run: None, watch=NoWatch())
    peer, other = FakePeer(), FakePeer()
    for number in range(COUNT):
        whose = cast(Any, peer if number else other)
        held = HeldRequest(whose, RemotingCommand(200050))
        call = PendingPop(held, None, "t", f"g{number}", ANY_QUEUE, None, 15_000, lambda *call: None)
        assert pops.hold(call, 15, [("t", queue_id) for queue_id in range(2)])
    peer.close()
    assert pops.count == 1
    assert [waiter.key for waiter in pops._by_queue["t", 1]] == [("t", "g0")]
    assert comparisons[0] < COUNT


def test_memberships_of_many_closed_connections_are_taken_off_in_slices() -> None:
    soon: list[Callable[[], None]] = []
    memberships = {FakePeer(): LEAVING_AT_ONCE // 2 + 10 for _ in range(5)}

    def leave_one(peer: Any) -> bool:
        if memberships[peer] == 0:
            return False
        memberships[peer] -= 1
        return True

    closed = ClosedPeers(leave_one, soon.append)
    peers = list(memberships)
    closed.add(cast(Any, peers[0]))
    assert memberships[peers[0]] == 0, "the first leave immediately"
    for peer in peers[1:]:
        closed.add(cast(Any, peer))
    slices = []
    while soon:
        before = sum(memberships.values())
        soon.pop(0)()
        slices.append(before - sum(memberships.values()))
    assert sum(memberships.values()) == 0
    assert len(slices) > 1
    assert max(slices) <= LEAVING_AT_ONCE


def test_a_membership_that_cannot_be_taken_off_does_not_keep_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    soon: list[Callable[[], None]] = []
    memberships = {FakePeer(): LEAVING_AT_ONCE + 10 for _ in range(3)}
    at_slices = {LEAVING_AT_ONCE + 5, 7}  # in add(), and in a later event loop iteration

    def leave_one(peer: Any) -> bool:
        if memberships[peer] == 0:
            return False
        memberships[peer] -= 1
        if memberships[peer] in at_slices:
            raise ValueError("a fault")
        return True

    closed = ClosedPeers(leave_one, soon.append)
    for peer in memberships:
        closed.add(cast(Any, peer))
    while soon:
        soon.pop(0)()
    assert set(memberships.values()) == {0}
    assert caplog.text.count("was not taken off completely") == 3 * len(at_slices)
