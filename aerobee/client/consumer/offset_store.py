"""Stores of a group's offsets: the broker for clustering, a local file for broadcasting (local_offsets.py).

Source: RemoteBrokerOffsetStore. Invariant: an offset is written only for a queue that this member owns or is releasing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from aerobee.client.consumer.broker_calls import commit_offset, committed_offset
from aerobee.client.session.session import Session
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Reads and writes offsets of one group."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The stored offset, None when there is none. Raises AerobeeError when it cannot be known now."""
        ...

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write offsets; the next owner of a queue may begin as soon as this returns. Failures are logged: the next
        round writes them again."""
        ...


class RemoteOffsets:
    """Offsets at the broker of each queue.

    A RocketMQ broker handles requests in several threads, so of two concurrent offsets the older may be
    applied last. So one write at a time is in flight to a broker, and each is answered before the next one is sent
    (RocketMQ's clients send theirs one-way; their next owner of a queue may repeat some messages).

    When a RocketMQ broker receives the first offsets of a group and topic in several threads simultaneously, it keeps
    those of one thread only (ConsumerOffsetManager.commitOffset looks a table up and puts a new one). So the first
    offset for a broker and topic is written alone.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._known: set[tuple[str, str]] = set()  # broker name and topic that have an offset of this group
        self._in_turn: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by broker name

    async def load(self, queue: MessageQueue) -> int | None:
        return await committed_offset(self._session, self._group, queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, error in await self._write(offsets):
            self._session.peers.trouble(
                log, error, "offset %d of %s is not committed: %s", offsets[queue], queue, error
            )

    async def save_and_wait(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write offsets. Raises the AerobeeError of the first offset that a broker refuses; the others are written."""
        for _, error in await self._write(offsets):
            raise error

    async def _write(self, offsets: Mapping[MessageQueue, int]) -> list[tuple[MessageQueue, AerobeeError]]:
        """Write offsets to all brokers concurrently; return the queues that failed."""
        of_broker: defaultdict[str, dict[MessageQueue, int]] = defaultdict(dict)
        for queue, offset in offsets.items():
            of_broker[queue.broker_name][queue] = offset
        failures = await asyncio.gather(*(self._write_to(*entry) for entry in of_broker.items()))
        return [failure for of_one in failures for failure in of_one]

    async def _write_to(
        self, broker_name: str, offsets: dict[MessageQueue, int]
    ) -> list[tuple[MessageQueue, AerobeeError]]:
        failures: list[tuple[MessageQueue, AerobeeError]] = []

        async def commit(queue: MessageQueue) -> None:
            try:
                await commit_offset(self._session, self._group, queue, offsets[queue])
                self._known.add((broker_name, queue.topic))
            except AerobeeError as error:
                failures.append((queue, error))

        async with self._in_turn[broker_name]:
            # One of each topic that has no offset yet, as far as this client knows.
            first: dict[str, MessageQueue] = {}
            for queue in offsets:
                if (broker_name, queue.topic) not in self._known:
                    first.setdefault(queue.topic, queue)
            for queue in first.values():
                await commit(queue)
            alone = set(first.values())
            await asyncio.gather(*(commit(queue) for queue in offsets if queue not in alone))
        return failures
