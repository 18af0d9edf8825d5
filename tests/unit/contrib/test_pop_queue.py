"""PopQueue without a broker."""

from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace
from typing import Any

from aerobee.contrib.delivery import Delivery
from aerobee.contrib.pop_queue import PopQueue


async def test_a_renewal_under_way_does_not_undo_that_there_are_no_more() -> None:
    queue = PopQueue("127.0.0.1:1", "T", client=None, wanted=lambda: 1, notify=lambda: None, invisible_s=60.0)
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def change_invisible(_: object, __: float) -> None:
        has_begun.set()
        await may_end.wait()

    consumer: Any = SimpleNamespace(change_invisible=change_invisible)
    queue._consumer = consumer
    message: Any = SimpleNamespace()
    delivery = Delivery(message, time.monotonic())
    queue._held.add(delivery)
    renewal = asyncio.create_task(queue._renew(delivery))
    await has_begun.wait()
    queue.renew_no_more(delivery)
    may_end.set()
    await renewal
    assert delivery.renew_at_s == math.inf
