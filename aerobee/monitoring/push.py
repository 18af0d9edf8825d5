"""Metrics pushed at an interval: to an OpenTelemetry receiver, or to the log.

A round reads the same families as /metrics, in steps of a millisecond with pauses: it uses at most 5 % of one
CPU. It sends one request at a time, with at most `metricsExportBatchMaxDataPoints` values. A failed request
causes a warning and ends the round; the next round starts normally.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from time import perf_counter, time_ns
from typing import Protocol

from aerobee.monitoring.deltas import Deltas, Point
from aerobee.monitoring.exposition import Family, Value, joined, sample_text
from aerobee.monitoring.otlp import OtlpReceiver, Taken
from aerobee.monitoring.slices import PAUSE_STEPS, SLICE_S

log = logging.getLogger(__name__)
numbers_log = logging.getLogger("aerobee.metrics")
LAST_ROUND_S = 1.0  # time-out of the last push at a stop
NOTHING = Taken(has_arrived=True)  # a result without a problem


class Sink(Protocol):
    """Takes points one by one."""

    name: str

    def begin(self, at_ns: int) -> None:
        """Begin a round with values of this time. Unsent data of an earlier round is dropped."""

    async def add(self, point: Point, help_text: str) -> tuple[list[Point], Taken]:
        """Add a point. Returns the points that were sent with it, and the result of the request."""

    async def flush(self) -> tuple[list[Point], Taken]:
        """Send the remaining points; returns as add() does."""

    def close(self) -> None:
        """Release the resources of the sink."""


class Push:
    """One sink that gets the metrics every `interval_s`. Call start(), then stop(); only stop() closes the sink."""

    def __init__(
        self,
        sink: Callable[[Push], Sink],
        families: Callable[[], Iterable[Family]],
        *,
        interval_s: float,
        in_delta: bool,
    ) -> None:
        self.begin_ns = time_ns()
        self.deltas = Deltas(self.begin_ns) if in_delta else None
        self._sink = sink(self)
        self._families = families
        self._interval_s = interval_s
        self._trouble = ""  # kind of the last logged failure
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start; the first round follows after one interval."""
        self._task = asyncio.create_task(self._run(), name="metrics-push")

    async def stop(self, *, last_round: bool = True) -> None:
        """Push a last round within a second, then stop."""
        task, self._task = self._task, None
        if task is None:
            self._sink.close()  # the sink was opened with this object
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            if last_round:
                async with asyncio.timeout(LAST_ROUND_S):
                    await self.round(pause_steps=0)
        except TimeoutError:
            log.info("the last numbers were not sent to %s in time", self._sink.name)
        except Exception:
            log.exception("the last numbers could not be sent to %s", self._sink.name)
        finally:
            self._sink.close()

    async def round(self, *, pause_steps: int = PAUSE_STEPS) -> bool:
        """Send all values once. Returns whether all arrived, including those that the receiver rejected."""
        turn, at_ns = perf_counter(), time_ns()
        rejected = False
        self._sink.begin(at_ns)
        for family, point in _points(self._families(), self.begin_ns):
            points, taken = await self._sink.add(point, family.help)
            if not self._noted(points, taken, at_ns):
                return False
            rejected |= bool(taken.trouble)
            now = perf_counter()
            if now - turn >= SLICE_S:
                await asyncio.sleep((now - turn) * pause_steps)
                turn = perf_counter()
        points, taken = await self._sink.flush()
        if not self._noted(points, taken, at_ns):
            return False
        rejected |= bool(taken.trouble)
        if self.deltas is not None:
            self.deltas.round_over()
        if self._trouble and not rejected:
            log.info("numbers are taken by %s again", self._sink.name)
            self._trouble = ""
        return True

    async def _run(self) -> None:
        due = perf_counter()
        while True:
            due = max(due + self._interval_s, perf_counter())
            await asyncio.sleep(due - perf_counter())
            try:
                await self.round()
            except Exception:
                log.exception("numbers could not be sent to %s", self._sink.name)

    def _noted(self, points: list[Point], taken: Taken, at_ns: int) -> bool:
        if taken.trouble:
            # Log once for each gRPC code: the text behind it differs between tries.
            code = taken.trouble.partition(":")[0]
            level = logging.DEBUG if code == self._trouble else logging.WARNING
            log.log(level, "numbers were not taken by %s: %s", self._sink.name, taken.trouble)
            self._trouble = code
        if self.deltas is not None and taken.has_arrived and points:
            self.deltas.taken(points, at_ns)
        return taken.has_arrived


class OtlpSink:
    """Fills requests, and sends each full one."""

    def __init__(self, receiver: OtlpReceiver, deltas: Deltas | None, batch_points: int) -> None:
        self.name = receiver.name
        self._receiver = receiver
        self._deltas = deltas
        self._batch_points = batch_points
        self.begin(time_ns())

    def begin(self, at_ns: int) -> None:
        self._at_ns = at_ns
        self._request = self._receiver.request(at_ns)
        self._waiting: list[Point] = []

    async def add(self, point: Point, help_text: str) -> tuple[list[Point], Taken]:
        shown = point
        if self._deltas is not None:
            changed = self._deltas.since(point)
            if changed is None:
                return [], NOTHING
            self._waiting.append(point)
            shown = changed
        self._request.add(shown, help_text)
        return await self.flush() if self._request.count >= self._batch_points else ([], NOTHING)

    async def flush(self) -> tuple[list[Point], Taken]:
        request, points = self._request, self._waiting
        self.begin(self._at_ns)
        if not request.count:
            return [], NOTHING
        return points, await self._receiver.send(request)

    def close(self) -> None:
        self._receiver.close()


class LogSink:
    """Writes each value as a line of the text format to the logger `aerobee.metrics`, at level INFO."""

    name = "the log"

    def __init__(self, deltas: Deltas | None) -> None:
        self._deltas = deltas

    def begin(self, at_ns: int) -> None: ...

    async def add(self, point: Point, help_text: str) -> tuple[list[Point], Taken]:
        shown = point if self._deltas is None else self._deltas.since(point)
        if shown is not None:
            for line in sample_text(shown.name, ((shown.labels, shown.value),)).rstrip("\n").split("\n"):
                numbers_log.info("%s", line)
        return [point], NOTHING

    async def flush(self) -> tuple[list[Point], Taken]:
        return [], NOTHING

    def close(self) -> None: ...


def _points(families: Iterable[Family], begin_ns: int) -> Iterator[tuple[Family, Point]]:
    for family in families:
        for labels, value in chain(family.samples, _sliced(family)):
            yield family, Point(family.name, family.kind, labels, value, begin_ns)


def _sliced(family: Family) -> Iterator[tuple[str, Value]]:
    for part in family.slices:
        for labels, value in part.samples():
            yield joined(part.common, labels), value
