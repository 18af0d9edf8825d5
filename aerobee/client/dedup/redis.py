"""Deduplication in Redis: for handlers whose data is in Redis, too.

    store = RedisDedup("redis://127.0.0.1:6379/0")

    async def count(message: ReceivedMessage, pipeline: redis.asyncio.client.Pipeline) -> None:
        pipeline.incr("orders")          # executed together with the key, in one MULTI/EXEC

The handler queues its commands on the pipeline; they are executed in one transaction with a SET of the key

    aerobee:dedup:{group}:{key} = ms since the epoch, expiring after `keep_s`

under a WATCH of that key: when another delivery of the message finishes first, nothing is executed. What is durable on
return is what Redis makes durable (appendonly, appendfsync). On a Redis cluster key and data must share a slot.
"""

from __future__ import annotations

import inspect
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import WatchError

from aerobee.client.dedup.handler import Effect
from aerobee.clock import Clock, SystemClock
from aerobee.errors import UsageError

PREFIX = "aerobee:dedup:"
WEEK_S = 7 * 86_400.0
# The next try after a lost race finds the winner's key, unless that key was removed immediately.
TRIES_MAX = 10


class RedisDedup:
    """Keys in a Redis. Takes a client of redis.asyncio or a URL."""

    is_async = True

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = PREFIX,
        keep_s: float = WEEK_S,
        clock: Clock | None = None,
    ) -> None:
        """Opens nothing. Raises UsageError when keys would not be kept at all."""
        if keep_s < 1:
            raise UsageError(f"keep_s is {keep_s}: keys are kept at least a second")
        self._redis: Any = Redis.from_url(client) if isinstance(client, str) else client
        self._prefix = prefix
        self._keep_s = keep_s
        self._clock = clock or SystemClock()

    async def run_once(self, group: str, key: str, effect: Effect) -> bool:
        """See DedupStore. `effect` runs again after a conflict with another delivery; its commands are executed once."""
        name = f"{self._prefix}{group}:{key}"
        for _ in range(TRIES_MAX):
            async with self._redis.pipeline(transaction=True) as pipeline:
                await pipeline.watch(name)
                if await pipeline.exists(name):
                    return False
                pipeline.multi()
                returned = effect(pipeline)
                if inspect.isawaitable(returned):
                    await returned
                pipeline.set(name, self._clock.now_ms(), ex=round(self._keep_s))
                try:
                    await pipeline.execute()
                except WatchError:
                    continue
                return True
        raise UsageError(
            f"key {name} changed {TRIES_MAX} times while its message was handled: who removes it?"
        )

    async def close(self) -> None:
        """Close the client's connections."""
        await self._redis.aclose()
