"""An asyncio event loop that waits in native code, together with the sockets that native code serves.

asyncio's own loop with another selector: one epoll holds what asyncio watches and the connections of one DirectNetwork.
When only connections have events, they are served and the wait continues, without an event loop iteration: a nested
epoll (direct.py, on any other loop) costs a fifth of a single message.

Connections are served in native code only, until there is work for the loop: a callback, a new or due timer, another
descriptor.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sized
from typing import Any, Protocol

from aerobee.remoting.request_stats import Answers

log = logging.getLogger("aerobee.native_loop")

FOREVER = -1.0

# What NativeEventLoop reads of asyncio's BaseEventLoop, which documents none of it: the handles that are ready to run, the
# timers as a heap, whether the loop is to stop. CPython 3.11 to 3.14 have these; native code takes these types.
PRIVATE_ATTRIBUTES: Mapping[str, type] = {"_ready": deque, "_scheduled": list, "_stopping": bool}

# For how many seconds to wait, below 0 for ever; what the loop is to run; its timers.
Wait = tuple[float, Sized | None, list[Any] | None]
Work = tuple[Sized | None, list[Any] | None]
# Serves connections for at most that long; returns after how many turns, and (descriptor, mask) of others.
Run = Callable[[Wait], tuple[int, list[tuple[int, int]]]]


class SocketTurns(Protocol):
    """Results of a run for Python. A connection is what was given to serve(), an owner or transport what to add().

    A protocol, because native code implements it.
    """

    @property
    def others(self) -> list[tuple[int, int]]:
        """(descriptor, selectors' mask) of those that are not ours to read."""
        ...

    @property
    def turn_count(self) -> int:
        """Number of iterations that served frames."""
        ...

    @property
    def stored_count(self) -> int:
        """How many requests have stored something, of all turns together (fastpath/seam.py: BurstResult)."""
        ...

    @property
    def pulled(self) -> list[tuple[Any, list[Any]]]:
        """(connection, PullResults); pulls of one consumer in a row are one."""
        ...

    @property
    def held(self) -> list[tuple[Any, bytes, Answers]]:
        """(connection, frames that wait for the disk or for replicas, which answers those are)."""
        ...

    @property
    def events(self) -> list[tuple[Any, int, Any]]:
        """(transport, kind, what), see direct.py."""
        ...

    @property
    def unsent(self) -> list[tuple[Any, bytes | int]]:
        """Bytes that peers did not accept: (transport, bytes), or (transport, number of the system's error)."""
        ...

    @property
    def fault(self) -> BaseException | None:
        """Failure while the results of these iterations were written into the store's objects."""
        ...


class NativeSockets(Protocol):
    """aerobee_native.Sockets. Methods raise KeyError for the token of a socket that was removed.

    A protocol, because native code implements it (Sockets of aerobee_native).
    """

    def fileno(self) -> int: ...

    def wait(self, timeout_s: float) -> tuple[int, list[tuple[int, int]]]:
        """Wait; below 0 for ever. Returns how many sockets have something, and (descriptor, selectors' mask) of others."""
        ...

    def run(
        self,
        backend: Any,
        timeout_s: float,
        *,
        turn_count_max: int,
        takes_sends: bool,
        takes_pulls: bool,
        now_ms: Callable[[], int] | None,
        loop_ready: Sized | None,
        loop_timers: list[Any] | None,
        linger_s: float = -1.0,
    ) -> SocketTurns:
        """Wait, read, serve and send repeatedly, until work is left for Python, or `linger_s` after the first iteration
        (below 0: no limit)."""
        ...

    def add(self, descriptor: int, owner: object) -> int: ...

    def remove(self, token: int) -> None: ...

    def watch(self, token: int, reads: bool, writes: bool) -> None: ...

    def watch_other(self, descriptor: int, mask: int) -> None:
        """Have wait() tell of a descriptor that is not a socket of these; mask 0: no longer. Raises OSError."""
        ...

    def serve(self, token: int, connection: object, born_host: bytes, host: str | None = None) -> None: ...

    def stop_serving(self, token: int) -> bytes: ...
    def keeps(self, token: int) -> bool: ...

    def send(self, token: int, data: bytes) -> int: ...


def new_event_loop(
    make_sockets: Callable[[], NativeSockets], make_usual: Callable[[], asyncio.AbstractEventLoop]
) -> asyncio.AbstractEventLoop:
    """A NativeEventLoop; on a Python whose loop lacks PRIVATE_ATTRIBUTES one of `make_usual`, which a warning says.

    The sockets work there as well, with a separate epoll below the loop's.
    """
    loop = NativeEventLoop(make_sockets())
    unknown = _unknown_attributes(loop)
    if not unknown:
        return loop
    loop.close()
    log.warning(
        "the event loop of Python %s has no %s as Aerobee knows it: the usual event loop runs, and the CPU cost of messages that "
        "arrive alone is higher",
        sys.version.split()[0],
        ", ".join(unknown),
    )
    return make_usual()


def _unknown_attributes(loop: NativeEventLoop) -> list[str]:
    return [
        name for name, kind in PRIVATE_ATTRIBUTES.items() if not isinstance(getattr(loop, name, None), kind)
    ]


class NativeEventLoop(asyncio.SelectorEventLoop):
    """Use it as any event loop. One DirectNetwork at a time may have its sockets. new_event_loop() makes it."""

    # PRIVATE_ATTRIBUTES
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, sockets: NativeSockets) -> None:
        self._native_selector = _NativeSelector(sockets, self.wait, self.work)
        super().__init__(self._native_selector)

    def lend(self, run: Run) -> NativeSockets | None:
        """Lend the sockets to one network, whose `run` serves them; None while another one has them."""
        selector = self._native_selector
        if selector.run is not None:
            return None
        selector.run = run
        return selector.sockets

    def take_back(self) -> None:
        """The network that uses the sockets has closed all its connections."""
        self._native_selector.run = None

    def work(self) -> Work:
        """The loop's ready callbacks and timers; asyncio replaces both objects occasionally."""
        return self._ready, self._scheduled

    def wait(self) -> Wait:
        """Time for which the loop only has to wait."""
        if self._ready or self._stopping:
            timeout_s = 0.0
        elif self._scheduled:
            timeout_s = max(0.0, self._scheduled[0].when() - self.time())
        else:
            timeout_s = FOREVER
        return timeout_s, self._ready, self._scheduled


class _NativeSelector(selectors.BaseSelector):
    """The selector interface of asyncio; register() and similar methods accept descriptors and objects with fileno()."""

    def __init__(self, sockets: NativeSockets, wait: Callable[[], Wait], work: Callable[[], Work]) -> None:
        self.sockets = sockets
        self.run: Run | None = None
        self._wait = wait
        self._work = work
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = _descriptor(fileobj)
        if descriptor in self._keys:
            raise KeyError(f"{fileobj!r} (descriptor {descriptor}) is already registered")
        self.sockets.watch_other(descriptor, events)
        key = self._keys[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._keys.pop(self._known(fileobj))
        self.sockets.watch_other(key.fd, 0)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = self._known(fileobj)
        if events != self._keys[descriptor].events:
            self.sockets.watch_other(descriptor, events)
        key = self._keys[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        keys = self._keys
        loop_ready, loop_timers = self._work()
        timeout_s = FOREVER if timeout is None else max(0.0, timeout)
        while True:
            if self.run is None:
                turn_count, others = 0, self.sockets.wait(timeout_s)[1]
            else:
                turn_count, others = self.run((timeout_s, loop_ready, loop_timers))
            if others:
                return [(keys[fd], mask & keys[fd].events) for fd, mask in others if fd in keys]
            if not turn_count:
                return []
            timeout_s, loop_ready, loop_timers = self._wait()
            if not timeout_s:
                return []

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[self._known(fileobj)]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        for descriptor in list(self._keys):
            self.unregister(descriptor)

    def _known(self, fileobj: Any) -> int:
        descriptor = _descriptor(fileobj)
        if descriptor in self._keys:
            return descriptor
        # An object that is closed has no descriptor any more, but is to be found as well.
        for key in self._keys.values():
            if key.fileobj is fileobj:
                return key.fd
        raise KeyError(f"{fileobj!r} is not registered")


def _descriptor(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
