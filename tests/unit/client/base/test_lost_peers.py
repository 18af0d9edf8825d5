"""One line for a peer that is lost, one for its return; what each caller had to say is for --debug."""

from __future__ import annotations

import logging

import pytest

from aerobee.client.base.lost_peers import LostPeers
from aerobee.clock import ManualClock
from aerobee.errors import AerobeeError, ConnectFailed, ConnectionLost, RequestTimeout, TopicNotExist

ADDRESS = "127.0.0.1:10911"
caller = logging.getLogger("aerobee.client.caller")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def peers(clock: ManualClock) -> LostPeers:
    return LostPeers(monotonic=clock.monotonic, name_of=lambda address: "broker broker-a")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", [ConnectFailed, ConnectionLost, RequestTimeout])
def test_many_failures_are_one_line_and_the_return_is_another(
    kind: type[AerobeeError], peers: LostPeers, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for number in range(5):
        error = kind(f"PULL_MESSAGE (11) at {ADDRESS} failed", address=ADDRESS)  # type: ignore[call-arg]
        peers.trouble(caller, error, "pull of queue %d: %s", number, error)
    clock.advance(3.2)
    peers.answered(ADDRESS)
    peers.answered(ADDRESS)
    lost, back = said(caplog)
    assert lost.startswith(f"broker broker-a at {ADDRESS} is lost: ")
    assert "11)" not in lost
    assert back == f"broker broker-a at {ADDRESS} is back after 3.2 s"
    assert sum(record.name == caller.name for record in caplog.records) == 5
    assert not peers.lost


def test_what_a_peer_answered_is_said_as_it_is(peers: LostPeers, caplog: pytest.LogCaptureFixture) -> None:
    peers.trouble(caller, TopicNotExist(17, "no such topic"), "pull of %s", "q")
    assert said(caplog) == ["pull of q"]
    assert not peers.lost


def test_each_peer_has_lines_of_its_own(peers: LostPeers, caplog: pytest.LogCaptureFixture) -> None:
    for port in (1, 2, 1):
        peers.trouble(caller, ConnectionLost("x", address=f"h:{port}"), "x")
    assert len(said(caplog)) == 2
