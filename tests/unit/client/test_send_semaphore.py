"""SendSemaphore: never more than the bound, first come first served, and nothing lost when a waiter is cancelled."""

from __future__ import annotations

import asyncio

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
    assert slots.taken == 1  # it is the first waiter's already, nobody gets in between
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
