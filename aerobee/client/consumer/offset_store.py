"""Where a group's offsets live: at the broker for clustering, in a file of this machine for broadcasting.

Source: RemoteBrokerOffsetStore, LocalFileOffsetStore. What always holds: an offset is written only for a queue that
this member owns or is just giving away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from aerobee.client.consumer.broker_calls import commit_offset, committed_offset
from aerobee.client.session import Session
from aerobee.errors import AerobeeError, StoreError
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body.message_queue import offset_map

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Reads and writes offsets of one group."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The stored offset, None when there is none. Raises AerobeeError when it cannot be known now."""
        ...

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write offsets. Failures are logged: the next round writes them again."""
        ...

    async def hand_over(self, offsets: Mapping[MessageQueue, int]) -> None:
        """The same for queues whose next owner may begin as soon as this returns: each broker has said that it has them."""
        ...


class RemoteOffsets:
    """Offsets at the broker of each queue.

    A RocketMQ broker that gets the first offsets of a group and topic in several threads at once keeps those of one
    thread only (ConsumerOffsetManager.commitOffset looks a table up and puts a new one). So the first offset for a
    broker and topic is written alone and waited for.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._known: set[tuple[str, str]] = set()  # broker name and topic that have an offset of this group
        self._first = asyncio.Lock()

    async def load(self, queue: MessageQueue) -> int | None:
        return await committed_offset(self._session, self._group, queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        await self._save_all(offsets, oneway=True)

    async def hand_over(self, offsets: Mapping[MessageQueue, int]) -> None:
        """One-way commits, as RocketMQ's clients send here too, may be applied after the next owner has asked."""
        await self._save_all(offsets, oneway=False)

    async def _save_all(self, offsets: Mapping[MessageQueue, int], *, oneway: bool) -> None:
        waiting = dict(offsets)
        async with self._first:
            for queue in self._strangers(offsets):
                await self._save_one(queue, waiting.pop(queue), oneway=False)
        await asyncio.gather(*(self._save_one(*entry, oneway=oneway) for entry in waiting.items()))

    async def save_and_wait(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write offsets and wait until each broker has them. Raises AerobeeError of the first that refuses."""
        waiting = dict(offsets)
        async with self._first:
            for queue in self._strangers(offsets):
                await self._commit(queue, waiting.pop(queue), oneway=False)
        await asyncio.gather(*(self._commit(*entry, oneway=False) for entry in waiting.items()))

    def _strangers(self, offsets: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """One queue for each broker and topic that has no offset yet, as far as we know."""
        first: dict[tuple[str, str], MessageQueue] = {}
        for queue in offsets:
            first.setdefault((queue.broker_name, queue.topic), queue)
        return [queue for place, queue in first.items() if place not in self._known]

    async def _save_one(self, queue: MessageQueue, offset: int, *, oneway: bool) -> None:
        try:
            await self._commit(queue, offset, oneway=oneway)
        except AerobeeError as error:
            self._session.peers.trouble(
                log, error, "offset %d of %s is not committed: %s", offset, queue, error
            )

    async def _commit(self, queue: MessageQueue, offset: int, *, oneway: bool) -> None:
        await commit_offset(self._session, self._group, queue, offset, oneway=oneway)
        if not oneway:
            self._known.add((queue.broker_name, queue.topic))


class LocalOffsets:
    """Offsets in `offsets.json`, in RocketMQ's form, replaced whole so that a reader sees the old or the new file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "offsets.json"
        self._offsets: dict[MessageQueue, int] | None = None

    async def load(self, queue: MessageQueue) -> int | None:
        return self._table().get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        table = self._table()
        table.update(offsets)
        try:
            self._write(table)
        except OSError as error:
            log.warning("offsets are not written to %s: %s", self._path, error)

    async def hand_over(self, offsets: Mapping[MessageQueue, int]) -> None:
        await self.save(offsets)

    def _table(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            self._offsets = {}
            for path in (self._path, self._path.with_suffix(".json.bak")):
                if path.exists():
                    self._offsets = self._read(path)
                    break
        return self._offsets

    def _read(self, path: Path) -> dict[MessageQueue, int]:
        try:
            return offset_map(fastjson.loads_object(path.read_bytes(), "an offsets file"), "offsetTable")
        except (OSError, AerobeeError) as error:
            raise StoreError(
                f"offsets file {path} is not readable ({error}): repair it, or delete it to start anew",
                path=str(path),
            ) from error

    def _write(self, table: Mapping[MessageQueue, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".json.tmp")
        temporary.write_bytes(fastjson.dumps({"offsetTable": dict(sorted(table.items()))}))
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path, self._path.with_suffix(".json.bak"))
        os.replace(temporary, self._path)
