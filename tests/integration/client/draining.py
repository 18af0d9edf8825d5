"""Read all messages of a topic."""

from __future__ import annotations

import asyncio


async def drain(consumer, count):
    messages = []
    async with asyncio.timeout(60):
        while len(messages) < count:
            messages += await consumer.poll(1.0)
    return messages
