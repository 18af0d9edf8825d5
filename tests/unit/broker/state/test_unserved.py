"""Requests that wait for a feature to start."""

from __future__ import annotations

import asyncio

from aerobee.broker.state.unserved import STARTING, UnservedKinds


async def test_waiting_requests_are_served_in_the_order_of_their_arrival() -> None:
    unserved = UnservedKinds()
    unserved.put(("pop",), STARTING)
    served: list[int] = []

    async def request(number: int) -> None:
        await unserved.when_served("pop")
        served.append(number)

    tasks = [asyncio.create_task(request(number)) for number in range(100)]
    await asyncio.sleep(0)
    unserved.take("pop")
    await asyncio.gather(*tasks)
    assert served == list(range(100))
