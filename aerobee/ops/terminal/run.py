"""Run a command's coroutine: uvloop when installed, and Ctrl-C that first asks and then forces.

The first SIGINT or SIGTERM sets `Stop`; the command ends what it does and returns. The second one cancels the
command's task, or ends the process at once where `on_force` says so. A command that never looks at `Stop` is
cancelled by the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

INTERRUPTED = (
    130  # ExitCode.INTERRUPTED, which this module cannot import without loading all that it explains
)
_ends_at_once = False


def end_at_once_on_interrupt() -> None:
    """From now on Ctrl-C ends the process with 130 wherever it is, also where the shell has it ignored.

    For what only looks and has nothing to undo. An exception would be lost where an event loop is being made or closed.
    """
    global _ends_at_once
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
        _ends_at_once = True


class Interrupted(Exception):
    """Ctrl-C ended a command before its work was done."""


class Stop:
    """Becomes true when the user asks to stop.

    `taken` is set by a command that ends by itself on the first signal; `on_force` is called on the second.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.taken = False
        self.on_ask: Callable[[], object] | None = None
        self.on_force: Callable[[], object] | None = None

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Ask to stop, as the first signal does."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until the user asks to stop. From here on the first signal no longer cancels."""
        self.taken = True
        await self._event.wait()

    async def or_done(self, work: Awaitable[T]) -> T | None:
        """Await `work` until it is done or the user asks to stop; then it is cancelled and None returned."""
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
    """Run to the end and return the result. Raises Interrupted when a signal cancelled the command.

    `make_loop` gives another event loop than uvloop's, or asyncio's where that is not installed.
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

        handled = () if _ends_at_once else (signal.SIGINT, signal.SIGTERM)
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
    """Call `on_signal` in the loop at each of these signals while entered."""
    try:
        for number in numbers:
            loop.add_signal_handler(number, on_signal)
    except NotImplementedError:  # the loops of Windows, which a signal wakes up
        former = {
            number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(on_signal))
            for number in numbers
        }
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def usual_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop, or asyncio's where the extra "fast" is not installed."""
    try:
        import uvloop  # a broker with native sockets has no use for it
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
