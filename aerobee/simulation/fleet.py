"""Runs many seeds in several processes. Each seed runs in a separate process, forked from one that has
imported everything.

So the interpreter state of one run cannot affect another, and a seed gives the same run alone and among
thousands.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection

from aerobee.simulation.outcome import Outcome

_BROKEN_PROCESS = "the process of this run ended with status"


def run_all(
    seeds: Iterable[int],
    run: Callable[[int], Outcome],
    *,
    jobs: int = 1,
    prepare: Callable[[], None] = lambda: None,
) -> Iterator[Outcome]:
    """Yield the outcome of each seed, in the order in which the runs end. `prepare` is called first in each process."""

    def alone(group: Sequence[int]) -> Iterator[Outcome]:
        prepare()
        yield from map(run, group)

    return run_groups(([seed] for seed in seeds), alone, jobs=jobs)


def run_groups(
    groups: Iterable[Sequence[int]], work: Callable[[Sequence[int]], Iterable[Outcome]], *, jobs: int = 1
) -> Iterator[Outcome]:
    """Yield the outcomes of all seeds. Each group has a separate process, in which `work` yields one for each of its seeds.

    Seeds without an outcome when their process ends have failed.
    """
    waiting = iter(groups)
    running: dict[
        Connection, tuple[int, dict[int, None]]
    ] = {}  # pipe of outcomes: (process, seeds without an outcome)
    try:
        while True:
            while len(running) < jobs and (group := next(waiting, None)) is not None:
                receiver, process = _fork(group, work)
                running[receiver] = process, dict.fromkeys(group)
            if not running:
                return
            for ready in multiprocessing.connection.wait(list(running)):
                assert isinstance(ready, Connection)
                process, left = running[ready]
                try:
                    # the data comes from a child process of this program
                    outcome: Outcome = pickle.loads(ready.recv_bytes())
                except EOFError:
                    del running[ready]
                    ready.close()
                    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                    for seed in left:
                        yield Outcome(seed, failure=f"{_BROKEN_PROCESS} {status}")
                    continue
                left.pop(outcome.seed, None)
                yield outcome
    finally:
        for receiver, (process, _) in running.items():
            receiver.close()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _fork(group: Sequence[int], work: Callable[[Sequence[int]], Iterable[Outcome]]) -> tuple[Connection, int]:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        sender.close()
        return receiver, process
    status = 1
    try:
        receiver.close()
        for outcome in work(group):
            sender.send_bytes(pickle.dumps(outcome))
        sender.close()
        status = 0
    finally:
        os._exit(status)  # the child must not flush or close the parent's files a second time
