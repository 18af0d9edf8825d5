"""Run a command's coroutine, with uvloop if installed; the first Ctrl-C requests the end, the second forces it.

The first SIGINT or SIGTERM sets `Stop`; the command completes its current work and returns. The second one cancels the
command's task, or calls `on_force`, which may terminate the process. The first
signal cancels a command that does not use `Stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

INTERRUPTED = 130  # ExitCode.INTERRUPTED; importing its module would load all exceptions that it explains
_exits_immediately = False


BEFORE_EXIT: list[
    Callable[[], None]
] = []  # called when Ctrl-C ends the process immediately; each only writes


def exit_on_interrupt() -> None:
    """From now on Ctrl-C ends the process immediately with exit code 130, even if the shell ignores SIGINT.

    For commands that only read. An exception could get lost while an event loop is created or closed.
    """
    global _exits_immediately
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _exit_now)
        _exits_immediately = True


def _exit_now(_number: int, _frame: FrameType | None) -> None:
    for each in BEFORE_EXIT:
        each()
    os._exit(INTERRUPTED)


class Interrupted(Exception):
    """Ctrl-C ended a command before its work was done."""


class Stop:
    """Becomes true at the first signal.

    A command that ends by itself after the first signal sets `taken`; the second signal calls `on_force`.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.taken = False
        self.on_ask: Callable[[], object] | None = None
        self.on_force: Callable[[], object] | None = None

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Request the end, as the first signal does."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for the first signal. From here on the first signal no longer cancels the command."""
        self.taken = True
        await self._event.wait()

    async def or_done(self, work: Awaitable[T]) -> T | None:
        """Await `work`. At the first signal cancel it and return None."""
        self.taken = True
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


MakeLoop = Callable[[], asyncio.AbstractEventLoop]


def run(command: Callable[[Stop], Coroutine[Any, Any, T]], *, make_loop: MakeLoop | None = None) -> T:
    """Run the command to its end and return the result. Raises Interrupted when a signal cancelled it.

    `make_loop` creates the event loop (default: uvloop's, or asyncio's if uvloop is not installed).
    """

    async def supervised() -> T:
        stop = Stop()
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def on_signal() -> None:
            if not stop:
                stop.set()
                if stop.on_ask is not None:
                    stop.on_ask()
                if stop.taken:
                    return
            elif stop.on_force is not None:
                stop.on_force()
            task.cancel()

        handled = () if _exits_immediately else (signal.SIGINT, signal.SIGTERM)
        try:
            with _handling(loop, handled, on_signal):
                return await command(stop)
        except asyncio.CancelledError:
            if stop:
                raise Interrupted from None
            raise

    with asyncio.Runner(loop_factory=make_loop or usual_loop) as runner:
        return runner.run(supervised())


@contextlib.contextmanager
def _handling(
    loop: asyncio.AbstractEventLoop, numbers: Sequence[signal.Signals], on_signal: Callable[[], None]
) -> Iterator[None]:
    """Call `on_signal` in the event loop for each of these signals inside the context."""
    try:
        for number in numbers:
            loop.add_signal_handler(number, on_signal)
    except NotImplementedError:  # Windows: a Python signal handler wakes the event loop up
        previous = {
            number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(on_signal))
            for number in numbers
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def usual_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop, or asyncio's if the extra "fast" is not installed."""
    try:
        import uvloop  # imported here: a broker with native sockets does not use it
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
