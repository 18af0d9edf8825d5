"""Many seeds on several processes. Each seed runs in a process of its own, forked from one that has imported everything.

So what a run leaves in the interpreter cannot reach the next one, and a seed is the same run alone and among thousands.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection

from aerobee.simulation.run import Outcome

_BROKEN_PROCESS = "the process of this run ended with status"


def run_all(
    seeds: Iterable[int],
    run: Callable[[int], Outcome],
    *,
    jobs: int = 1,
    prepare: Callable[[], None] = lambda: None,
) -> Iterator[Outcome]:
    """Yield the outcome of each seed, in the order in which the runs end. `prepare` is called first in each process."""
    waiting = iter(seeds)
    running: dict[Connection, tuple[int, int]] = {}  # where the outcome comes: (seed, process)
    try:
        while True:
            while len(running) < jobs and (seed := next(waiting, None)) is not None:
                receiver, process = _fork(seed, run, prepare)
                running[receiver] = seed, process
            if not running:
                return
            for ready in multiprocessing.connection.wait(list(running)):
                assert isinstance(ready, Connection)
                seed, process = running.pop(ready)
                yield _outcome(ready, seed, process)
    finally:
        for receiver, (_, process) in running.items():
            receiver.close()
            os.kill(process, 9)
            os.waitpid(process, 0)


def _fork(seed: int, run: Callable[[int], Outcome], prepare: Callable[[], None]) -> tuple[Connection, int]:
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
        prepare()
        sender.send_bytes(pickle.dumps(run(seed)))
        sender.close()
        status = 0
    finally:
        os._exit(status)  # nothing of the parent's is to be flushed or closed twice


def _outcome(receiver: Connection, seed: int, process: int) -> Outcome:
    try:
        found: Outcome = pickle.loads(receiver.recv_bytes())  # our own child wrote it
    except EOFError:
        _, status = os.waitpid(process, 0)
        return Outcome(seed, failure=f"{_BROKEN_PROCESS} {os.waitstatus_to_exitcode(status)}")
    finally:
        receiver.close()
    os.waitpid(process, 0)
    return found
