"""Runs one seed and returns its outcome. Equal seeds give equal runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import hashlib
import itertools
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from aerobee.broker.assembly import features
from aerobee.errors import UsageError
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.checks import check_in_the_end
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.drawn_settings import SHARED_STARTS, drawn_settings
from aerobee.simulation.fleet import run_all
from aerobee.simulation.nemesis import Nemesis
from aerobee.simulation.node import Settings
from aerobee.simulation.outcome import Outcome
from aerobee.simulation.scenarios import Scenario
from aerobee.simulation.simulated_disk import PowerCut
from aerobee.simulation.simulated_loop import SimulatedClock, SimulatedLoop, StoodStill

LOOK_CPU_S = 60.0  # CPU seconds of this process within which simulated time must advance
WHEEL_SLOTS = (
    512  # slots of one second; RocketMQ has 604,800, and each sync of the simulated disk scans the whole file
)
PROCESS_ID = 4_242  # process id of every simulated process: message ids contain it


@dataclass(slots=True)
class Started:
    """A started cluster before any fault. It is forked once for each of its seeds."""

    loop: SimulatedLoop
    cluster: Cluster
    core_s: float = 0.0
    simulated_s: float = 0.0
    failure: Exception | None = None
    unheard: list[str] = field(default_factory=list)  # errors that no caller handled


def start_of(seed: int) -> int:
    """The seed of the start of this run: SHARED_STARTS successive seeds share two starts, one for each kind
    of flush.
    """
    return seed - seed % SHARED_STARTS + seed % 2


def groups_of(seeds: Iterable[int]) -> Iterator[list[int]]:
    """The seeds, grouped by their shared start."""
    for _, block in itertools.groupby(seeds, lambda seed: seed // SHARED_STARTS):
        members = list(block)
        for kind in (0, 1):
            if group := [seed for seed in members if seed % 2 == kind]:
                yield group


def run_seed(
    seed: int,
    *,
    minutes: float = 1.0,
    scenario: Scenario | None = None,
    left_out: frozenset[int] = frozenset(),
    prepare: Callable[[Cluster], None] = lambda cluster: None,
) -> Outcome:
    """Run a cluster under faults for a number of simulated minutes, or through a scenario; then let it
    recover and check it.

    `left_out`: numbers of random faults to skip.
    """
    with _this_machine():
        if scenario is not None:
            started = start(seed, scenario.settings, prepare, waits_for_clients=False)
        else:
            started = start(start_of(seed), drawn_settings(start_of(seed)), prepare)
        try:
            return _run_started(started, seed, minutes, scenario, left_out)
        finally:
            _end(started)


def run_group(seeds: Sequence[int], *, minutes: float = 1.0) -> Iterator[Outcome]:
    """The outcomes of seeds of one group, as run_seed() has them: the cluster is started once, and each run is forked from it.

    A run ends with its process, without stopping the cluster.
    """
    with _this_machine():
        first = start_of(seeds[0])
        started = start(first, drawn_settings(first))
        started.core_s /= len(seeds)
        started.simulated_s *= 1 - 1 / len(seeds)  # each run counts its share of the start
        for outcome in run_all(seeds, lambda seed: _run_started(started, seed, minutes, None, frozenset())):
            outcome.simulated_s -= started.simulated_s
            yield outcome


def start(
    seed: int,
    settings: Settings,
    prepare: Callable[[Cluster], None] = lambda cluster: None,
    *,
    waits_for_clients: bool = True,
) -> Started:
    """Start a cluster with its clients, and wait until each client has sent or received a message. A failure
    of the start becomes the failure of all its runs.

    Raises UsageError where assertions do not run.
    """
    if not __debug__:
        raise UsageError(
            "a simulation checks the code by its assertions: run it without -O and without PYTHONOPTIMIZE"
        )
    began = time.process_time()
    clock = SimulatedClock()
    loop = SimulatedLoop(clock)
    asyncio.set_event_loop(loop)
    random.seed(seed)  # for code that uses the module random
    started = Started(loop, Cluster(seed, clock, settings))

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), PowerCut):  # expected: a process that dies in a disk call
            started.unheard.append(f"{context['message']}: {context.get('exception')!r}")

    loop.set_exception_handler(note)
    prepare(started.cluster)
    try:
        with _gets_on(loop):
            loop.run_until_complete(_start(started.cluster, waits_for_clients))
    except StoodStill as error:
        started.failure = Broken(Checker.PROGRESS, f"the start stood still: {error}")
    except Exception as error:
        started.failure = error
    started.core_s = time.process_time() - began
    started.simulated_s = clock.monotonic()
    return started


async def _start(cluster: Cluster, waits_for_clients: bool) -> None:
    await cluster.start()
    await cluster.prepare()
    cluster.begin()
    if waits_for_clients:
        await cluster.get_going()


def _run_started(
    started: Started, seed: int, minutes: float, scenario: Scenario | None, left_out: frozenset[int]
) -> Outcome:
    outcome = Outcome(seed)
    began = time.process_time()
    loop, cluster = started.loop, started.cluster
    random.seed(seed)
    cluster.reseed(seed)
    try:
        with _gets_on(loop):
            loop.run_until_complete(_life(started, outcome, minutes, scenario, left_out))
        started.unheard += [
            repr(error) for error in loop.lost_exceptions() if not isinstance(error, PowerCut)
        ]
        if started.unheard:
            raise Broken(Checker.NO_FAULT_OF_OURS, f"an unhandled error: {started.unheard[0]}")
    except Broken as error:
        outcome.failure, outcome.checker = str(error), error.checker.value
    except StoodStill as error:
        outcome.checker = Checker.PROGRESS.value
        outcome.failure = f"{outcome.checker}: stood still: {error}"
    except Exception as error:
        outcome.checker = Checker.NO_FAULT_OF_OURS.value
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.failure = f"{type(error).__name__}: {error} in {where.name}, {os.path.basename(where.filename)} line {where.lineno}"
    finally:
        outcome.simulated_s = cluster.clock.monotonic()
        outcome.story = list(cluster.story.lines)
        outcome.masters, outcome.returns = cluster.changes, cluster.returns
        outcome.met = cluster.contacts.table(cluster.settings.names)
        outcome.sent = len(cluster.clients.sent)
        outcome.acknowledged = sum(each.offset >= 0 for each in cluster.clients.sent)
    outcome.core_s = time.process_time() - began + started.core_s
    told = [
        *outcome.story,
        *(f"{each.body!r} {each.queue_id} {each.offset}" for each in cluster.clients.sent),
        *(
            f"{each.body!r} {each.queue_id} {each.offset}"
            for stream in cluster.streams
            for each in stream.sent.values()
        ),
        f"{cluster.network.trace:08x}",
    ]
    outcome.digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
    return outcome


@contextlib.contextmanager
def _this_machine() -> Iterator[None]:
    """Isolates a run from the real machine; disables garbage collection, which costs a tenth of the time; uses small
    timer wheels."""
    process_id, was_collecting = os.getpid, gc.isenabled()
    makers = vars(features)
    timers = makers["Timers"]
    os.getpid = lambda: PROCESS_ID
    makers["Timers"] = functools.partial(timers, slot_count=WHEEL_SLOTS)
    gc.disable()
    try:
        yield
    finally:
        os.getpid = process_id
        makers["Timers"] = timers
        if was_collecting:
            gc.enable()


@contextlib.contextmanager
def _gets_on(loop: SimulatedLoop) -> Iterator[None]:
    """Raise StoodStill in the running code when this process uses LOOK_CPU_S of CPU time without progress of
    simulated time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = -1.0

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if loop.time() == seen:
            where = "".join(traceback.format_stack(frame, 8))
            loop.stood_still = StoodStill(f"{LOOK_CPU_S:.0f} s, and it is still {seen:.6f} s, in\n{where}")
            raise loop.stood_still
        seen = loop.time()

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, LOOK_CPU_S, LOOK_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


async def _life(
    started: Started, outcome: Outcome, minutes: float, scenario: Scenario | None, left_out: frozenset[int]
) -> None:
    cluster = started.cluster
    if started.failure is not None:
        raise started.failure
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
    await asyncio.sleep(0)  # tasks that wait for a task that has just failed get its exception


def _end(started: Started) -> None:
    """Stop all remaining processes. Nothing is checked any more."""
    loop = started.loop
    if loop.stood_still is not None:  # the loop would stand still again
        asyncio.set_event_loop(None)
        loop.close()
        return
    loop.run_until_complete(started.cluster.stop())
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    try:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
