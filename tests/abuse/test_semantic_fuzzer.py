"""Some hundred sequences of hostile requests against each role, and what finds nothing finds no fault either."""

from __future__ import annotations

import asyncio
import random

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.nameserver import NameServer
from aerobee.testing import LocalCluster
from tests.abuse import semantic_fuzzer, semantic_judges
from tests.abuse.hostile_requests import HostileRequests, fields_of
from tests.survival.hostile_frames import Fault

SEQUENCES = {"broker": 150, "nameserver": 150, "client": 150}


@pytest.mark.parametrize("role", SEQUENCES)
def test_hostile_requests_are_survived_and_others_served(role: str) -> None:
    figures = asyncio.run(semantic_fuzzer.run(role, SEQUENCES[role], seed=2026))
    assert figures["faults"] == 0
    if role == "broker":  # what is refused at the door shows nothing of what is behind it
        assert isinstance(figures["stored"], int)
        assert figures["stored"] >= 3


def test_a_request_that_holds_the_loop_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semantic_judges, "STALL_CPU_S", 0.0)
    with pytest.raises(Fault, match="ms of the event loop"):
        asyncio.run(semantic_fuzzer.run("nameserver", 40, seed=1))


async def test_the_fields_of_requests_are_found_in_the_handlers() -> None:
    async with LocalCluster() as cluster:
        broker, server = cluster.broker(), cluster.nameserver()
        assert isinstance(broker, Broker)
        assert isinstance(server, NameServer)
        fields = fields_of(broker.handlers)
        assert fields[15].items() >= {
            ("consumerGroup", "text"),
            ("topic", "text"),
            ("commitOffset", "integer"),
        }
        assert fields[17]["topic"] == "text"
        assert fields[310]["b"] == "text"
        assert fields_of(server.handlers)[103]["brokerName"] == "text"
        # The same numbers make the same requests.
        one, two = (HostileRequests(random.Random(5), broker.handlers) for _ in range(2))
        assert [one.next() for _ in range(200)] == [two.next() for _ in range(200)]
