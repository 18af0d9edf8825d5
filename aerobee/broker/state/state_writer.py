"""The threads that write a broker's small files, so that the event loop never waits for the disk.

One thread writes the files that requests wait for, the other the rest, so that a large offset file on a slow disk
delays no administrator. Invariant: each of the two threads runs its work in order. A file belongs to one of them. For a
file without waiting requests only the newest content is written, replacing waiting content; a failed write is retried
(retry) until it or newer content is written. RocketMQ writes these files in the threads that change them
(ConfigManager.persist).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from aerobee.errors import AerobeeError, StoreError
from aerobee.thread_pool import start_threads

log = logging.getLogger(__name__)

Work = Callable[[], None]


def _nothing() -> None:
    """Earlier work is done."""


def _own_thread(name: str) -> Executor:
    pool = ThreadPoolExecutor(1, name)
    start_threads(pool, 1)
    return pool


class StateWriter:
    """Runs blocking work in two threads. Any thread may call, but for write(), which belongs to the event loop."""

    def __init__(self, executor: Executor | None = None) -> None:
        """`executor` runs one piece of work at a time, of both kinds; own threads when none is given."""
        self._executor = executor or _own_thread("aerobee-config")
        self._urgent = executor or _own_thread("aerobee-config-requests")
        self._lock = threading.Lock()
        self._waiting: dict[str, Work] = {}  # path -> its newest content, not begun
        self._refused: dict[str, Work] = {}  # path -> what the disk did not take

    @property
    def refused_paths(self) -> list[str]:
        """The files that the disk did not take the last time."""
        with self._lock:
            return list(self._refused)

    async def write(self, work: Work) -> None:
        """Run `work`, for which a request waits; it is done on return.

        Raises the errors of `work`, and StoreError when the writer is closed.
        """
        try:
            future = asyncio.get_running_loop().run_in_executor(self._urgent, work)
        except RuntimeError as error:
            raise StoreError("the broker is stopping: nothing is written any more") from error
        await future

    def write_soon(self, path: str, work: Work) -> None:
        """Run `work`, which writes `path`, after earlier work; it replaces waiting work for this path."""
        with self._lock:
            is_queued = path in self._waiting
            self._waiting[path] = work
        if not is_queued:
            self._executor.submit(self._write_newest, path)

    async def written(self, path: str) -> None:
        """Return when what write_soon() was given for the path is in the file. Raises StoreError when the disk does not take it, or
        the writer is closed; it is tried again then as always."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, _nothing)
        except RuntimeError as error:
            raise StoreError("the broker is stopping: nothing is written any more") from error
        if path in self.refused_paths:
            raise StoreError(f"{path} is not written: the disk refuses it", path=path)

    def run(self, work: Work) -> None:
        """Run `work` in its turn, once. A failure is logged."""

        def once() -> None:
            try:
                work()
            except AerobeeError as error:
                log.error("%s", error)

        self._executor.submit(once)

    def retry(self) -> None:
        """Try again what the disk refused, unless newer content waits already."""
        with self._lock:
            again = {path: work for path, work in self._refused.items() if path not in self._waiting}
        for path, work in again.items():
            self.write_soon(path, work)

    def close(self, *, wait: bool) -> None:
        """Accept no more work; with `wait` the accepted work is done on return, and failed writes are retried once."""
        for executor in (self._urgent, self._executor):
            executor.shutdown(wait=wait)
        if wait:
            for path in self.refused_paths:
                self._waiting[path] = self._refused[path]
                self._write_newest(path)

    def _write_newest(self, path: str) -> None:
        with self._lock:
            work = self._waiting.pop(path)
        try:
            work()
        except AerobeeError as error:
            with self._lock:
                is_new = path not in self._refused
                self._refused[path] = work
            if is_new:
                log.error("%s; it is tried again until the disk takes it", error)
        else:
            with self._lock:
                was_refused = self._refused.pop(path, None) is not None
            if was_refused:
                log.warning("%s is written again", path)
