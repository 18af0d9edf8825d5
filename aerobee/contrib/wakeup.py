"""Wakes a thread that waits for messages: one that blocks in wait(), or an event loop that reads `fileno()`."""

from __future__ import annotations

import socket
import threading
import time

_DRAIN_BYTES = 4096


class Wakeup:
    """notify() from any thread ends each wait() that began with an older count, and makes fileno() readable."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._pair: tuple[socket.socket, socket.socket] | None = None

    @property
    def count(self) -> int:
        """Number of notifications so far. Read it before you look for messages, and give it to wait()."""
        return self._count

    def notify(self) -> None:
        """Something changed. Never blocks."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            if self._pair is not None:
                try:
                    self._pair[1].send(b"\0")
                except BlockingIOError:
                    pass  # the buffer is full of wake-ups that the event loop has not read: one more adds nothing

    def wait(self, seen: int, timeout_s: float | None) -> bool:
        """Block until notify() was called after `seen` was read; False after `timeout_s`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while self._count == seen:
                left_s = None if end is None else end - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def fileno(self) -> int:
        """A descriptor that is readable after notify() until clear(). Opened at the first call."""
        with self._changed:
            if self._pair is None:
                self._pair = socket.socketpair()
                for end in self._pair:
                    end.setblocking(False)
            return self._pair[0].fileno()

    def clear(self) -> None:
        """Make fileno() unreadable until the next notify(). Look for messages afterwards, not before."""
        with self._changed:
            if self._pair is not None:
                try:
                    while len(self._pair[0].recv(_DRAIN_BYTES)) == _DRAIN_BYTES:
                        pass
                except BlockingIOError:
                    pass  # it was read to its end

    def close(self) -> None:
        """Close the descriptor. notify() and wait() still work."""
        with self._changed:
            pair, self._pair = self._pair, None
        for end in pair or ():
            end.close()
