"""Runs one seed and tells what happened. The same seed gives the same run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.checks import check_in_the_end
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.nemesis import Nemesis
from aerobee.simulation.node import Settings
from aerobee.simulation.scenarios import Scenario
from aerobee.testing.simulated_loop import SimulatedClock, SimulatedLoop


@dataclass(slots=True)
class Outcome:
    """One run. `failure` is empty when every promise was kept; `digest` is the same for the same run."""

    seed: int
    failure: str = ""
    checker: str = ""  # the name of the one that noticed
    simulated_s: float = 0.0
    wall_s: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    fault_count: int = 0  # of the schedule, with those that were left out
    faults: dict[str, int] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    digest: str = ""


PROCESS_ID = 4_242  # of every process in the simulation: it is in the ids of messages


def run_seed(
    seed: int,
    *,
    minutes: float = 1.0,
    scenario: Scenario | None = None,
    left_out: frozenset[int] = frozenset(),
    prepare: Callable[[Cluster], None] = lambda cluster: None,
) -> Outcome:
    """Run a cluster under faults for so many simulated minutes, or through a scenario; then let it get well and check it.

    `left_out`: numbers of random faults that do not happen.
    """
    clock = SimulatedClock()
    loop = SimulatedLoop(clock)
    outcome = Outcome(seed)
    began = time.perf_counter()
    asyncio.set_event_loop(loop)
    random.seed(seed)  # for whoever takes its numbers from the module
    unheard: list[str] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        unheard.append(f"{context['message']}: {error!r}")

    loop.set_exception_handler(note)
    with _this_machine():
        settings = scenario.settings if scenario is not None else Settings(sync_disk=bool(seed % 2))
        cluster = Cluster(seed, clock, settings)
        prepare(cluster)
        try:
            loop.run_until_complete(_life(cluster, outcome, minutes, scenario, left_out))
            if unheard:
                raise Broken(Checker.NO_FAULT_OF_OURS, f"an error that nobody handled: {unheard[0]}")
        except Broken as error:
            outcome.failure, outcome.checker = str(error), error.checker.value
        except Exception as error:
            outcome.checker = Checker.NO_FAULT_OF_OURS.value
            outcome.failure = f"{type(error).__name__}: {error}"
        finally:
            outcome.simulated_s = clock.monotonic()
            outcome.story = cluster.story.lines
            outcome.sent = len(cluster.clients.sent)
            outcome.acknowledged = sum(each.offset >= 0 for each in cluster.clients.sent)
            _close(loop)
    outcome.wall_s = time.perf_counter() - began
    told = [
        *outcome.story,
        *(f"{each.body!r} {each.queue_id} {each.offset}" for each in cluster.clients.sent),
        f"{cluster.network.trace:08x}",
    ]
    outcome.digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
    return outcome


@contextlib.contextmanager
def _this_machine() -> Iterator[None]:
    """What a run must not see of the real machine; and no garbage collection, whose passes cost a tenth of the time."""
    process_id, was_collecting = os.getpid, gc.isenabled()
    os.getpid = lambda: PROCESS_ID
    gc.disable()
    try:
        yield
    finally:
        os.getpid = process_id
        if was_collecting:
            gc.enable()


async def _life(
    cluster: Cluster, outcome: Outcome, minutes: float, scenario: Scenario | None, left_out: frozenset[int]
) -> None:
    try:
        await cluster.start()
        await cluster.create_topic()
        cluster.begin()
        nemesis = Nemesis(cluster, left_out)
        try:
            if scenario is not None:
                await scenario.script(cluster, random.Random(cluster.rng.getrandbits(64)))
                outcome.faults = {scenario.name: 1}
                await nemesis.mend()
            else:
                await nemesis.run(minutes * 60)
                outcome.faults = dict(nemesis.counts)
        finally:
            outcome.faults = outcome.faults or dict(nemesis.counts)
            outcome.fault_count = nemesis.count
        await check_in_the_end(cluster)
    finally:
        await cluster.stop()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    try:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
