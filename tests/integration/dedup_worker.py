"""A consumer in a separate process that books payments once each, and dies where the test says.

    dedup_worker.py NAMESERVER URL DIE    DIE: never, before-commit, after-commit

Prints a line for each message that its handler finished with, "known ID" for a repetition. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys

from aerobee.client import ConsumeFrom, ConsumerConfig, PushConsumer, ReceivedMessage
from aerobee.client.dedup import deduplicated
from aerobee.client.dedup.handler import DedupStore, Effect

GROUP = "bookkeepers"
DIED = 9


class Watched:
    """A store that dies after the commit, before the acknowledgement, and tells of repetitions."""

    def __init__(self, store: DedupStore, die: str) -> None:
        self._store = store
        self._die = die
        self.is_async = store.is_async

    async def run_once(self, group: str, key: str, effect: Effect) -> bool:
        was_new = await self._store.run_once(group, key, effect)
        if was_new and self._die == "after-commit":
            os._exit(DIED)
        print("done" if was_new else "known", key, flush=True)
        return was_new


def sql_handler(url: str, die: str):
    from sqlalchemy import text

    from aerobee.client.dedup.sql import SqlDedup

    def book(message: ReceivedMessage, connection) -> None:
        connection.execute(
            text("INSERT INTO bookings (what) VALUES (:what)"), {"what": message.body.decode()}
        )
        if die == "before-commit":
            os._exit(DIED)

    return deduplicated(Watched(SqlDedup(url), die), GROUP, book)


def redis_handler(url: str, die: str):
    from aerobee.client.dedup.redis import RedisDedup

    async def book(message: ReceivedMessage, pipeline) -> None:
        pipeline.rpush("bookings", message.body)
        if die == "before-commit":
            os._exit(DIED)

    return deduplicated(Watched(RedisDedup(url), die), GROUP, book)


async def main() -> None:
    nameserver, url, die = sys.argv[1:]
    handler = (redis_handler if url.startswith("redis:") else sql_handler)(url, die)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, concurrency=1)
    async with PushConsumer(
        nameserver, GROUP, subscriptions={"payments": "*"}, handler=handler, config=config
    ):
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
