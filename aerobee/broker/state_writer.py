"""The thread that writes a broker's small files, so that the event loop never waits for the disk.

What always holds: writes happen one after the other; what a request waits for goes before what nobody waits for, and each
of the two keeps its order. Of one file only the newest content is written, what waits meanwhile is replaced; what the disk
refuses is tried again (retry) until it is taken or newer content is. RocketMQ writes these files in the threads that change
them (ConfigManager.persist).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from aerobee.errors import AerobeeError, StoreError

log = logging.getLogger(__name__)

Work = Callable[[], None]


class StateWriter:
    """Runs blocking work in one thread. Any thread may call, but for write(), which belongs to the event loop."""

    def __init__(self, executor: Executor | None = None) -> None:
        """`executor` runs one piece of work at a time; a thread of its own when none is given."""
        self._executor = executor or ThreadPoolExecutor(1, "aerobee-config")
        self._lock = threading.Lock()
        self._urgent: deque[Work] = deque()
        self._others: deque[Work] = deque()
        self._waiting: dict[str, Work] = {}  # path -> its newest content, not begun
        self._refused: dict[str, Work] = {}  # path -> what the disk did not take

    @property
    def refused_paths(self) -> list[str]:
        """The files that the disk did not take the last time."""
        with self._lock:
            return list(self._refused)

    async def write(self, work: Work) -> None:
        """Run `work` before all that nobody waits for; it is done on return.

        Raises what it raises, StoreError when the writer is closed.
        """
        done: Future[None] = Future()

        def urgent() -> None:
            try:
                work()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        # The turn in which it is run may be one that other work was given: there are as many turns as pieces of work.
        self._urgent.append(urgent)
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._run_next)
        except RuntimeError as error:
            if urgent in self._urgent:
                self._urgent.remove(urgent)
                raise StoreError("the broker is stopping: nothing is written any more") from error
        await asyncio.wrap_future(done)

    def write_soon(self, path: str, work: Work) -> None:
        """Run `work`, which writes `path`, in its turn; it replaces what waits for this path."""
        with self._lock:
            is_queued = path in self._waiting
            self._waiting[path] = work
        if not is_queued:
            self._submit(lambda: self._write_newest(path))

    def run(self, work: Work) -> None:
        """Run `work` in its turn, once. A failure is logged."""

        def once() -> None:
            try:
                work()
            except AerobeeError as error:
                log.error("%s", error)

        self._submit(once)

    def retry(self) -> None:
        """Try again what the disk refused, unless newer content waits already."""
        with self._lock:
            again = {path: work for path, work in self._refused.items() if path not in self._waiting}
        for path, work in again.items():
            self.write_soon(path, work)

    def close(self, *, wait: bool) -> None:
        """Take no more work; with `wait` what was given is done on return, and what the disk refused tried once more."""
        self._executor.shutdown(wait=wait)
        if wait:
            for path in self.refused_paths:
                self._waiting[path] = self._refused[path]
                self._write_newest(path)

    def _submit(self, work: Work) -> None:
        self._others.append(work)
        self._executor.submit(self._run_next)

    def _run_next(self) -> None:
        """One turn: there are as many as there is work."""
        (self._urgent or self._others).popleft()()

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
