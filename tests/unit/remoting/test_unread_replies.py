"""Which peer is disconnected when unread replies take too much memory."""

from __future__ import annotations

from typing import cast

from aerobee.remoting.connection import Connection
from aerobee.remoting.unread_replies import STALLED_LOOKS, UnreadReplies
from tests.fakes import FakePeer

LIMIT = 1_000


def peer(unsent: int, *, congested: bool = True) -> FakePeer:
    found = FakePeer()
    found.unsent_bytes, found.congested = unsent, congested
    return found


def watch(*peers: FakePeer) -> UnreadReplies:
    def still_open() -> list[Connection]:
        return [cast(Connection, peer) for peer in peers if peer.is_open]

    return UnreadReplies(still_open, limit_bytes=LIMIT)


def test_below_half_the_bound_no_peer_is_disconnected() -> None:
    unresponsive = peer(LIMIT // 2)
    unread = watch(unresponsive)
    assert [unread.look() for _ in range(10)] == [LIMIT // 2] * 10
    assert unresponsive.is_open


def test_above_half_the_bound_a_peer_gets_some_looks_to_take_something() -> None:
    unresponsive = peer(600)
    unread = watch(unresponsive)
    for _ in range(STALLED_LOOKS):
        assert unread.look() == 600
    assert unread.look() == 0
    assert unresponsive.close_reason == "the peer reads nothing, 600 bytes waited for it"


def test_above_the_bound_the_second_look_without_progress_is_the_last() -> None:
    unresponsive = peer(LIMIT + 1)
    unread = watch(unresponsive)
    assert unread.look() == LIMIT + 1
    assert unread.look() == 0


def test_a_peer_that_reads_slowly_stays_and_those_that_wait_for_most_go_first() -> None:
    slow, large, small = peer(500), peer(400), peer(300)
    unread = watch(slow, small, large)
    unread.look()
    slow.unsent_bytes -= 1
    assert unread.look() == 499  # both had to go: more than half the bound waits for the slow one alone
    assert large.close_reason
    assert small.close_reason
    assert slow.is_open


def test_no_more_are_disconnected_than_it_takes() -> None:
    peers = [peer(300) for _ in range(4)]
    unread = watch(*peers)
    unread.look()
    assert unread.look() == 300
    assert sum(bool(peer.close_reason) for peer in peers) == 3


def test_a_peer_that_is_served_without_a_pause_is_not_looked_at() -> None:
    busy = peer(LIMIT * 2, congested=False)
    unread = watch(busy)
    assert [unread.look() for _ in range(5)] == [LIMIT * 2] * 5
