"""File descriptors reserved for the store, so that connections cannot exhaust those that it needs.

A process has a limit of open files. If connections used all descriptors for a moment, a due log file, a checkpoint or
the committed offsets could not be written. So the store keeps some unused descriptors open, and closes one when an open
fails for lack of descriptors. It opens spare ones again as soon as descriptors are free.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from aerobee.system import open_files_max

T = TypeVar("T")

USED_UP = frozenset((errno.EMFILE, errno.ENFILE))
SPARE_COUNT = 64  # a mapped file takes two: as many as a broker opens while it rolls its files over
_SHARE = 16  # maximum share of the process's limit, as a divisor
_GIVE_UP_AT_ONCE = 4
_TRIES = 8  # another thread may take a descriptor that was given up


def is_used_up(error: BaseException | None) -> bool:
    """Whether this says that no descriptor is free: it passes, and nothing was done yet."""
    return isinstance(error, OSError) and error.errno in USED_UP


class SpareDescriptors:
    """The reserved descriptors. Any thread."""

    def __init__(self, count: int = SPARE_COUNT) -> None:
        self.count = count
        self._held: list[int] = []
        self._lock = threading.Lock()
        self.refill()

    @property
    def held(self) -> int:
        """Number of reserved descriptors."""
        return len(self._held)

    def refill(self) -> None:
        """Reserve missing descriptors again, as far as some are free."""
        with self._lock:
            self._refill()

    def _refill(self) -> None:
        try:
            while len(self._held) < self.count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return  # later

    def opened(self, open_: Callable[[], T]) -> T:
        """Return open_(). If no descriptor is free, it is called again after some reserved ones were released.

        Raises the OSError of `open_` when no reserved descriptor is left to close.
        """
        if len(self._held) < self.count:
            self.refill()
        try:
            return open_()
        except OSError as error:
            if not is_used_up(error):
                raise
            failure = error
        with self._lock:
            for _ in range(_TRIES):
                if not self._held:
                    break
                for descriptor in self._held[-_GIVE_UP_AT_ONCE:]:
                    os.close(descriptor)
                del self._held[-_GIVE_UP_AT_ONCE:]
                try:
                    return open_()
                except OSError as error:
                    if not is_used_up(error):
                        raise
                    failure = error
        raise failure

    def close(self) -> None:
        """Give all of them back to the system."""
        with self._lock:
            while self._held:
                os.close(self._held.pop())


_process_lock = threading.Lock()
_process: list[SpareDescriptors] = []


def process_spares() -> SpareDescriptors:
    """The reserved descriptors of this process, shared by all its stores."""
    with _process_lock:
        if not _process:
            _process.append(SpareDescriptors(max(8, min(SPARE_COUNT, open_files_max() // _SHARE))))
        return _process[0]
