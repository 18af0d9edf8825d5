"""Who is sent away when too many connections at the HA port have not shown who they are, and what is said of it."""

from __future__ import annotations

import logging

import pytest

from aerobee.broker.replication.unproven_connections import UnprovenConnections


class Transport:
    def __init__(self, host: str, port: int) -> None:
        self.peer = (host, port)
        self.is_aborted = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        assert name == "peername"
        return self.peer

    def abort(self) -> None:
        self.is_aborted = True


def test_a_flood_from_one_address_pushes_out_its_own() -> None:
    unproven = UnprovenConnections(4)
    slaves = [Transport("10.0.0.1", 1), Transport("10.0.0.2", 2)]
    crowd = [Transport("10.0.0.9", port) for port in range(50)]
    for transport in (*slaves, *crowd):
        unproven.add(transport)  # type: ignore[arg-type]
    assert not any(slave.is_aborted for slave in slaves)
    assert [transport.is_aborted for transport in crowd] == [True] * 48 + [False] * 2


def test_of_as_many_the_oldest_goes() -> None:
    unproven = UnprovenConnections(3)
    transports = [Transport(f"10.0.0.{number}", 1) for number in range(5)]
    for transport in transports:
        unproven.add(transport)  # type: ignore[arg-type]
    assert [transport.is_aborted for transport in transports] == [True, True, False, False, False]


def test_an_address_that_is_refused_again_and_again_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    unproven = UnprovenConnections()
    clock = [0.0]
    unproven._throttle._monotonic = lambda: clock[0]
    with caplog.at_level(logging.WARNING):
        for port in range(30):
            unproven.refused(Transport("10.0.0.9", port), "a wrong key")  # type: ignore[arg-type]
        unproven.refused(Transport("10.0.0.1", 1), "no key")  # type: ignore[arg-type]
        clock[0] = 10.5
        unproven.refused(Transport("10.0.0.9", 31), "a wrong key")  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        "the connection with ('10.0.0.9', 0) at the HA port is closed: a wrong key",
        "the connection with ('10.0.0.1', 1) at the HA port is closed: no key",
        "the connection with ('10.0.0.9', 31) at the HA port is closed: a wrong key (29 more like it before)",
    ]
