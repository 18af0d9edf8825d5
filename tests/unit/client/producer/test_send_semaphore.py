"""SendSemaphore: never more than the bound, first come first served, and nothing lost when a waiter is cancelled."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from aerobee.client.producer.send_semaphore import SendSemaphore


async def started(work: asyncio.Task[None]) -> asyncio.Task[None]:
    await asyncio.sleep(0)
    return work


async def test_a_slot_that_is_given_back_goes_to_who_waits_longest() -> None:
    slots = SendSemaphore(1)
    await slots.wait()
    assert slots.taken == 1
    first = await started(asyncio.create_task(slots.wait()))
    second = await started(asyncio.create_task(slots.wait()))
    slots.give_back()
    assert slots.taken == 1  # the first waiter has it already, no other task gets it
    await first
    assert not second.done()
    slots.give_back()
    await second
    slots.give_back()
    assert (slots.taken, slots.is_watched) == (0, False)


async def test_a_cancelled_waiter_keeps_no_slot() -> None:
    slots = SendSemaphore(1)
    slots.taken += 1
    waiting = await started(asyncio.create_task(slots.wait()))
    last = await started(asyncio.create_task(slots.wait()))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    slots.give_back()
    await last
    assert slots.taken == 1


async def test_a_waiter_cancelled_when_its_turn_has_come_hands_the_slot_on() -> None:
    slots = SendSemaphore(1)
    slots.taken += 1
    waiting = await started(asyncio.create_task(slots.wait()))
    last = await started(asyncio.create_task(slots.wait()))
    slots.give_back()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await last
    slots.give_back()
    assert (slots.taken, slots.is_watched) == (0, False)


async def test_emptied_returns_with_the_last_slot() -> None:
    slots = SendSemaphore(2)
    await slots.emptied()
    slots.taken += 1
    slots.taken += 1
    emptied = await started(asyncio.create_task(slots.emptied()))
    slots.give_back()
    await asyncio.sleep(0)
    assert not emptied.done()
    slots.give_back()
    await emptied


async def test_all_who_wait_for_it_to_empty_are_told() -> None:
    slots = SendSemaphore(1)
    slots.taken += 1
    waiting = [await started(asyncio.create_task(slots.emptied())) for _ in range(3)]
    waiting[1].cancel()
    slots.give_back()
    assert await asyncio.gather(waiting[0], waiting[2]) == [None, None]
    assert slots.taken == 0
    assert waiting[1].cancelled()


async def test_cancelled_waiters_are_passed_over_without_a_search_for_each() -> None:
    slots = SendSemaphore(1)
    slots.taken += 1
    compared = 0

    class Line(deque[asyncio.Future[None]]):
        def remove(self, value: asyncio.Future[None]) -> None:
            nonlocal compared
            compared += self.index(value) + 1
            super().remove(value)

    slots._waiters = Line()
    waiting = [await started(asyncio.create_task(slots.wait())) for _ in range(50)]
    last = await started(asyncio.create_task(slots.wait()))
    for each in reversed(waiting):
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    slots.give_back()
    await last
    slots.give_back()
    assert (compared, slots.taken, slots.is_watched) == (0, 0, False)
