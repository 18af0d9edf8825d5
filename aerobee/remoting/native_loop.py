"""An asyncio event loop that waits in native code, together with the sockets that native code serves.

asyncio's loop with another selector: one epoll contains the descriptors that asyncio watches and the
connections of one DirectNetwork. When only connections have events, they are served and the wait continues,
without an event loop iteration: a nested epoll (direct.py, on any other loop) costs a fifth of a single
message.

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

# Undocumented attributes of asyncio's BaseEventLoop that NativeEventLoop reads: the ready handles, the heap
# of timers, and whether the loop must stop. CPython 3.11 to 3.14 have these; native code takes these types.
PRIVATE_ATTRIBUTES: Mapping[str, type] = {"_ready": deque, "_scheduled": list, "_stopping": bool}

# Arguments of a wait: seconds (negative: no time-out), the loop's ready handles, its timers.
Wait = tuple[float, Sized | None, list[Any] | None]
Work = tuple[Sized | None, list[Any] | None]
# Serves connections for at most the given time; returns the number of iterations, and (descriptor, mask) of
# other descriptors.
Run = Callable[[Wait], tuple[int, list[tuple[int, int]]]]


class SocketTurns(Protocol):
    """Results of a run for Python. A connection is the object passed to serve(), an owner or transport the
    object passed to add().

    A protocol, because native code implements it.
    """

    @property
    def others(self) -> list[tuple[int, int]]:
        """(descriptor, selectors' mask) of descriptors that asyncio watches."""
        ...

    @property
    def turn_count(self) -> int:
        """Number of iterations that served frames."""
        ...

    @property
    def stored_count(self) -> int:
        """Number of requests that stored something, over all iterations (fastpath/seam.py: BurstResult)."""
        ...

    @property
    def pulled(self) -> list[tuple[Any, list[Any]]]:
        """(connection, PullResults); consecutive pulls of one consumer are combined."""
        ...

    @property
    def held(self) -> list[tuple[Any, bytes, Answers, str | None]]:
        """(connection, replies deferred until disk or replicas have the messages, their request codes and numbers, the
        ack level for which they wait; None: that of the broker's settings)."""
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
        """Wait for events, without a time-out if `timeout_s` is negative. Returns the number of these sockets
        with events, and (descriptor, selectors' mask) of each other descriptor with events.
        """
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
        """Let wait() also report another descriptor; mask 0 stops that. Raises OSError."""
        ...

    def serve(self, token: int, connection: object, born_host: bytes, host: str | None = None) -> None: ...

    def stop_serving(self, token: int) -> bytes: ...
    def keeps(self, token: int) -> bool: ...

    def send(self, token: int, data: bytes) -> int: ...


def new_event_loop(
    make_sockets: Callable[[], NativeSockets], make_usual: Callable[[], asyncio.AbstractEventLoop]
) -> asyncio.AbstractEventLoop:
    """A NativeEventLoop. On a Python whose loop lacks PRIVATE_ATTRIBUTES, `make_usual()` and a warning.

    The native sockets work there too, with a separate epoll nested in the loop's.
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
    """An asyncio event loop. One DirectNetwork at a time may use its native sockets. Created by new_event_loop()."""

    # PRIVATE_ATTRIBUTES
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, sockets: NativeSockets) -> None:
        self._native_selector = _NativeSelector(sockets, self.wait, self.work)
        super().__init__(self._native_selector)

    def lend(self, run: Run) -> NativeSockets | None:
        """Lend the sockets to one network, whose `run` serves them; None while another network uses them."""
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
        # A closed object has no descriptor any more, but unregister() must still find it.
        for key in self._keys.values():
            if key.fileobj is fileobj:
                return key.fd
        raise KeyError(f"{fileobj!r} is not registered")


def _descriptor(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
