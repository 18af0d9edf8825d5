"""Rounds of numbers to a receiver that rejects, fails, or is waited for when the server stops."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from aerobee.clock import ManualClock
from aerobee.metrics_config import MetricsConfig
from aerobee.monitoring.deltas import Point
from aerobee.monitoring.export import Export
from aerobee.monitoring.exposition import COUNTER, Family
from aerobee.monitoring.health import Health
from aerobee.monitoring.otlp import Taken
from aerobee.monitoring.push import OtlpSink, Push


class Request:
    def __init__(self, at_ns: int) -> None:
        self.at_ns = at_ns
        self.points: list[Point] = []

    @property
    def count(self) -> int:
        return len(self.points)

    def add(self, point: Point, help_text: str) -> None:
        self.points.append(point)


class Receiver:
    """`answers` are given one by one, then everything is taken."""

    name = "a receiver"

    def __init__(self, *answers: Taken) -> None:
        self.answers = list(answers)
        self.taken: list[Request] = []

    def request(self, at_ns: int) -> Request:
        return Request(at_ns)

    async def send(self, request: Request) -> Taken:
        answer = self.answers.pop(0) if self.answers else Taken(True)
        if answer.has_arrived:
            self.taken.append(request)
        return answer

    def sums(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for request in self.taken:
            for point in request.points:
                assert isinstance(point.value, int)
                found[point.name] = found.get(point.name, 0) + point.value
        return found

    def close(self) -> None: ...


def pushing(receiver: Receiver, counts: dict[str, int], *, batch_points: int = 1000) -> Push:
    def families() -> Iterator[Family]:
        for name, count in counts.items():
            yield Family(name, COUNTER, "help", samples=[("", count)])

    return Push(
        lambda push: OtlpSink(receiver, push.deltas, batch_points),  # type: ignore[arg-type]
        families,
        interval_s=3600,
        in_delta=True,
    )


async def test_what_a_receiver_rejects_is_not_sent_again_and_holds_nothing_up() -> None:
    receiver = Receiver(*[Taken(True, "REJECTED: 1 numbers, too many")] * 3)
    counts = {"first": 5, "second": 7}
    push = pushing(receiver, counts, batch_points=1)
    for _ in range(5):
        assert await push.round()
    assert receiver.sums() == {"first": 5, "second": 7}
    counts["first"] = 6
    assert await push.round()
    assert receiver.sums() == {"first": 6, "second": 7}


async def test_what_did_not_arrive_is_in_the_next_difference() -> None:
    receiver = Receiver(Taken(False, "UNAVAILABLE: away"))
    push = pushing(receiver, {"first": 5})
    assert not await push.round()
    assert await push.round()
    assert receiver.sums() == {"first": 5}


async def test_a_round_that_a_stop_cuts_off_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.monitoring.push.SLICE_S", 0)  # a pause behind each number
    receiver = Receiver()
    push = pushing(receiver, {"first": 3, "second": 4})
    cut = asyncio.create_task(push.round(pause_steps=1_000_000))
    await asyncio.sleep(0)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    assert not receiver.taken
    assert await push.round(pause_steps=0)
    assert receiver.sums() == {"first": 3, "second": 4}


async def test_numbers_have_the_time_of_their_round() -> None:
    receiver = Receiver()
    push = pushing(receiver, counts := {"first": 1})
    await push.round()
    counts["first"] = 2
    before = time.time_ns()
    await push.round()
    assert receiver.taken[-1].at_ns >= before
    assert receiver.taken[-1].points[0].begin_ns <= receiver.taken[-1].at_ns


async def test_a_start_that_fails_lets_go_of_every_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr("aerobee.monitoring.push.LogSink.close", lambda self: closed.append(self.name))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = MetricsConfig(
            metrics_exporter_type="PROM,LOG",
            metrics_prom_exporter_host="127.0.0.1",
            metrics_prom_exporter_port=taken.getsockname()[1],
        )
        export = Export(
            config, scope="test", health=Health("broker"), families=lambda: (), clock=ManualClock()
        )
        with pytest.raises(OSError, match="in use"):
            await export.start()
    assert closed == ["the log"]
