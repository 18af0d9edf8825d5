"""Pools whose threads run from the start, so that none is missing when the machine gives no more of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from aerobee.errors import StoreError

STARTED_WITHIN_S = 60.0  # a thread that was given begins to run long before


def start_threads(pool: ThreadPoolExecutor, count: int) -> None:
    """Start all `count` threads of a pool immediately. Blocking, some tenths of a millisecond.

    A pool starts a thread when work comes and all are busy; where the machine gives none that raises in the middle of the
    work, which is queued and runs later all the same. Raises StoreError when a thread cannot be started or does not begin.
    """
    all_run = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            pool.submit(all_run.wait, STARTED_WITHIN_S)
        all_run.wait(STARTED_WITHIN_S)
    except (RuntimeError, threading.BrokenBarrierError) as error:
        all_run.abort()
        raise StoreError(
            f"the broker cannot start its {count} threads: {error}. Raise the limit of processes (ulimit -u, or pids.max of "
            "its control group), or end what uses them up"
        ) from error
