"""HandlerThreads: plain functions run off the event loop, in few named threads, and end without waiters."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from aerobee.client.base.handler_threads import HandlerThreads, in_threads, is_plain


@pytest.fixture
def threads() -> Iterator[HandlerThreads]:
    threads = HandlerThreads("aerobee-billing", 3)
    yield threads
    threads.close()


async def test_a_blocking_function_does_not_block_the_event_loop(threads: HandlerThreads) -> None:
    release = threading.Event()
    blocked = asyncio.ensure_future(threads.call(lambda _: release.wait(120), None))
    await asyncio.sleep(0)  # with the function in the loop's own thread this would not return
    release.set()
    assert await blocked


async def test_no_more_threads_than_the_bound_and_each_is_named(threads: HandlerThreads) -> None:
    names: list[str] = []
    together = threading.Barrier(3)

    def work(number: int) -> int:
        names.append(threading.current_thread().name)
        together.wait(120)  # passes only when three run at the same time
        return number

    assert await asyncio.gather(*(threads.call(work, n) for n in range(9))) == list(range(9))
    assert set(names) == {"aerobee-billing-1", "aerobee-billing-2", "aerobee-billing-3"}
    assert all(thread.daemon for thread in threads._threads)


async def test_a_thread_that_is_free_is_used_again(threads: HandlerThreads) -> None:
    for _ in range(5):
        await threads.call(lambda _: None, None)
        while not threads._idle._value:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert len(threads._threads) == 1


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration()])
async def test_what_a_function_raises_is_raised_where_it_is_awaited(
    threads: HandlerThreads, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    with pytest.raises(RuntimeError if isinstance(error, StopIteration) else ValueError):
        await threads.call(fail, None)


async def test_a_call_that_was_cancelled_before_its_turn_does_not_run() -> None:
    threads, release, ran = HandlerThreads("one", 1), threading.Event(), []
    first = asyncio.ensure_future(threads.call(lambda _: release.wait(120), None))
    second = asyncio.ensure_future(threads.call(ran.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    release.set()
    await first
    await threads.call(lambda _: None, None)
    assert ran == []
    threads.close()


async def test_context_variables_and_returned_coroutines_work_as_in_the_loop(threads: HandlerThreads) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("seen")

    async def delayed(text: str) -> str:
        return text + threading.current_thread().name

    def handler(_: Any) -> Any:
        return delayed(variable.get())

    assert await in_threads(handler, threads)(None) == "seen" + threading.current_thread().name


def test_which_handlers_are_plain() -> None:
    async def coroutine(_: object) -> None: ...

    class Awaitable:
        async def __call__(self, _: object) -> None: ...

    class Plain:
        def __call__(self, _: object) -> None: ...

    assert not is_plain(coroutine)
    assert not is_plain(partial(coroutine))
    assert not is_plain(Awaitable())
    assert is_plain(Plain())
    assert is_plain([].append)
    assert is_plain(lambda message: coroutine(message))
