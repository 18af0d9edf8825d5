"""Runs plain `def` handlers in threads, so that a blocking handler delays neither the event loop nor Ctrl-C.

At most `count_max` threads, named after the group; a thread is started when a call finds no idle thread. They are
daemons: the end of the program does not wait for a handler that never returns. A coroutine that a plain function
returns is awaited in the event loop, as for `async def`.

Invariants: a call that is cancelled before a thread took it does not run; a running call cannot be stopped, and its
result is dropped after a cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

Function = Callable[[Any], Any]


class _Call:
    """One call and the future that waits for it in the event loop."""

    __slots__ = ("argument", "context", "function", "future", "loop")

    def __init__(self, function: Function, argument: Any) -> None:
        self.function = function
        self.argument = argument
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.context = contextvars.copy_context()

    def run(self) -> None:
        if self.future.cancelled():
            return
        result: Any = None
        error: BaseException | None = None
        try:
            result = self.context.run(self.function, self.argument)
        except StopIteration as stop:  # a future refuses StopIteration
            error = RuntimeError(f"the handler raised {stop!r}")
        except BaseException as raised:
            # Every exception belongs to the call: it is raised again where the call is awaited.
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended, so no task waits for this call
            self.loop.call_soon_threadsafe(self._finish, result, error)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class HandlerThreads:
    """Up to `count_max` threads; the caller bounds the calls that wait for one."""

    def __init__(self, name: str, count_max: int) -> None:
        self._name = name
        self._count_max = count_max
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    async def call(self, function: Function, argument: Any) -> Any:
        """Run `function(argument)` in a thread and return what it returns, or raise what it raises."""
        call = _Call(function, argument)
        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._count_max:
            thread = threading.Thread(
                target=self._work, name=f"{self._name}-{len(self._threads) + 1}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return await call.future

    def close(self) -> None:
        """Let the threads end when they have no more calls; does not wait."""
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                self._idle.release()
                call = self._calls.get()
            if call is None:
                return
            call.run()
            del call  # drops the references to this call before waiting for the next one


def is_plain(handler: Function) -> bool:
    """Whether a call of `handler` does its work synchronously, instead of returning a coroutine."""
    while isinstance(handler, partial):
        handler = handler.func
    return not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__))


def in_threads(handler: Function, threads: HandlerThreads) -> Function:
    """A coroutine function that runs the plain `handler` in a thread."""

    async def handle(messages: Any) -> Any:
        returned = await threads.call(handler, messages)
        if returned is not None and inspect.isawaitable(returned):
            return await returned
        return returned

    return handle
