"""What one client may have under way at a controller leaves the rest to the others."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from aerobee.errors import QuorumBusy
from aerobee.ha.controller.call_shares import OF_ALL_MAX, OF_HOST_MAX, OF_PEER_MAX, CallShares
from aerobee.ha.raft.inbox import CALLS_MAX
from tests.fakes import FakePeer


def fill(shares: CallShares, under_way: ExitStack, host: str, port: int = 1) -> int:
    """Begin calls on new connections of a host until one is refused immediately; return how many were taken."""
    count = 0
    while True:
        peer = FakePeer((host, port + count))
        try:
            for _ in range(OF_PEER_MAX):
                under_way.enter_context(shares.share(peer))
                count += 1
        except QuorumBusy:
            return count


def test_one_connection_has_a_share() -> None:
    shares, peer = CallShares(), FakePeer()
    with ExitStack() as under_way:
        for _ in range(OF_PEER_MAX):
            under_way.enter_context(shares.share(peer))
        with pytest.raises(QuorumBusy, match="this connection"):
            under_way.enter_context(shares.share(peer))
        under_way.enter_context(shares.share(FakePeer()))  # another one of the same host
    with shares.share(peer):  # they were answered
        pass


def test_a_host_leaves_calls_to_the_others_and_all_leave_some_to_the_controller() -> None:
    shares = CallShares()
    with ExitStack() as under_way:
        assert fill(shares, under_way, "10.0.0.1") == OF_HOST_MAX
        assert fill(shares, under_way, "10.0.0.2") == OF_ALL_MAX - OF_HOST_MAX
        assert OF_ALL_MAX < CALLS_MAX
        with pytest.raises(QuorumBusy, match="all connections"):
            under_way.enter_context(shares.share(FakePeer(("10.0.0.3", 1))))
    assert not shares._of_peer
    assert not shares._of_host
    assert shares._count == 0
