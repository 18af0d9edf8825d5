"""A task that many wait for: each waiter gets its outcome, none takes it from the others, and all may give up together."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.shared_task import SharedTask


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_all_who_wait_get_the_result_in_the_order_in_which_they_came() -> None:
    ready = asyncio.Event()

    async def work() -> int:
        await ready.wait()
        return 7

    shared, order = SharedTask(asyncio.create_task(work())), list[int]()

    async def wait(number: int) -> int:
        result = await shared.outcome()
        order.append(number)
        return result

    waiters = [asyncio.create_task(wait(number)) for number in range(5)]
    await settle()
    waiters[2].cancel()
    ready.set()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert [result for result in results if not isinstance(result, BaseException)] == [7] * 4
    assert order == [0, 1, 3, 4]
    assert await shared.outcome() == 7, "who comes later gets it, too"


async def test_a_failure_reaches_each_of_them_and_cancelling_the_task_cancels_them() -> None:
    async def fail() -> None:
        raise OSError("no")

    shared = SharedTask(asyncio.create_task(fail()))
    outcomes = await asyncio.gather(shared.outcome(), shared.outcome(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OSError, OSError]

    waiting = SharedTask(asyncio.create_task(asyncio.sleep(3_600)))
    waiter = asyncio.create_task(waiting.outcome())
    await settle()
    waiting.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_who_gives_up_leaves_nothing_behind() -> None:
    """Asked of what is kept, not of the time: asyncio.shield() leaves its callbacks on the task until they are searched for."""
    shared = SharedTask(asyncio.create_task(asyncio.sleep(3_600)))
    waiters = [asyncio.create_task(shared.outcome()) for _ in range(2_000)]
    await settle()
    assert len(shared._waiters) == 2_000
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert not shared._waiters
    assert not shared.task.done()
    shared.task.cancel()
    await settle()
