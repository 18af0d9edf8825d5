"""Samples the load of a cluster: a row for each queue and each broker, as load_rows.py describes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from aerobee.client.base.results import QueueStats
from aerobee.clock import MS_PER_HOUR
from aerobee.errors import AerobeeError, RemoteError, TransportError
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, SHARDING_KEY, MessageQueue
from aerobee.placement.cluster import PlacementAdmin, Settings
from aerobee.placement.load_rows import LoadSample
from aerobee.placement.steps import ABSENT, State

log = logging.getLogger(__name__)

TOPICS_AT_ONCE = 8
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


class LoadSampler(PlacementAdmin):
    """The calls of one sample."""

    async def sample(self) -> list[LoadSample]:
        """Rows of all brokers whose master replies, and of all topics except system topics."""
        at_ms = self._session.clock.now_ms()
        masters = await self.master_addresses()
        info = await self.cluster_info()
        zones = {name: data.zone_name or "" for name, data in info.broker_addr_table.items()}
        hidden = set(await self.system_topics())
        topics = [
            topic
            for topic in await self.topics()
            if topic not in hidden and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]
        rows = []
        for name, address in list(masters.items()):
            try:
                rows.append(await self._broker_row(at_ms, name, address, zones[name]))
            except TransportError as error:
                log.warning("broker %s is left out of this look: %s", name, error)
                del masters[name]
        gate = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def look(topic: str) -> list[LoadSample]:
            async with gate:
                return await self._topic_rows(at_ms, topic, masters, zones)

        for found in await asyncio.gather(*map(look, topics)):
            rows += found
        return rows

    async def _broker_row(self, at_ms: int, name: str, address: str, zone: str) -> LoadSample:
        runtime = await self.broker_runtime(address)
        config = await self.broker_config(address)
        return LoadSample(
            at_ms=at_ms,
            broker=name,
            zone=zone,
            end=int(runtime.get("commitLogMaxOffset", "0")),
            disk_total=_bytes_of(runtime.get("commitLogDirCapacity", "")),
            retention_ms=int(config.get("fileReservedTime", "72")) * MS_PER_HOUR,
        )

    async def _topic_rows(
        self, at_ms: int, topic: str, masters: dict[str, str], zones: dict[str, str]
    ) -> list[LoadSample]:
        try:
            stats = await self.topic_stats(topic)
            states, settings, _ = await self.states(topic, masters)
            groups = await self.reading_groups(topic)
            is_static = bool((await self.topic_route(topic)).logical)
        except AerobeeError:
            # the topic was deleted meanwhile, or one of its brokers does not reply: this sample lacks it
            return []
        members = [await self._members(group) for group in groups]
        is_ordered = settings is not None and await self._is_ordered(topic, settings, groups)
        pinned = "a static topic" if is_static else _why_pinned(states)
        is_sharded = not pinned and await self._has_sharding_key(stats)
        rows = []
        for name in sorted(name for name, state in states.items() if state != ABSENT):
            size, bytes_out = await self._counted(topic, masters[name], groups)
            ends = {each.queue.queue_id: each.max_offset for each in stats if each.queue.broker_name == name}
            rows += [
                LoadSample(
                    at_ms=at_ms,
                    broker=name,
                    zone=zones[name],
                    topic=topic,
                    queue_id=queue_id,
                    end=max(0, ends.get(queue_id, 0)),
                    size=size,
                    bytes_out=bytes_out,
                    groups=len(groups),
                    members=",".join(str(count) for count in members if count),
                    is_ordered=is_ordered,
                    is_sharded=is_sharded,
                    pinned=pinned,
                )
                for queue_id in range(states[name].read)
            ]
        return rows

    async def _members(self, group: str) -> int:
        try:
            return len((await self.consumer_connections(group)).connections)
        except RemoteError:
            return 0

    async def _is_ordered(self, topic: str, settings: Settings, groups: tuple[str, ...]) -> bool:
        if settings.order or settings.message_type == "FIFO" or await self.order_entry(topic) is not None:
            return True
        for group in groups:
            if any(lock.queue.topic == topic for lock in await self.queue_locks(group) or ()):
                return True
        return False

    async def _has_sharding_key(self, stats: tuple[QueueStats, ...]) -> bool:
        """Whether the newest message of the fullest queue has a sharding key."""
        newest = max(stats, key=lambda each: each.max_offset - each.min_offset, default=None)
        if newest is None or newest.max_offset <= newest.min_offset:
            return False
        queue: MessageQueue = newest.queue
        messages, _ = await self.messages_from(queue, newest.max_offset - 1)
        return any(SHARDING_KEY in message.properties for message in messages)

    async def _counted(
        self, topic: str, address: str, groups: tuple[str, ...]
    ) -> tuple[float | None, float | None]:
        """(mean message size, bytes out per second), as the broker counted over the last minute."""
        size = None
        with contextlib.suppress(RemoteError):  # the broker has no counts yet
            count = (await self.broker_stats(address, "TOPIC_PUT_NUMS", topic)).minute_sum
            if count > 0:
                size = (await self.broker_stats(address, "TOPIC_PUT_SIZE", topic)).minute_sum / count
        out = 0.0
        for group in groups:
            with contextlib.suppress(RemoteError):
                out += (await self.broker_stats(address, "GROUP_GET_SIZE", f"{topic}@{group}")).minute_tps
        return size, out or None


def _why_pinned(states: dict[str, State]) -> str:
    for name, state in sorted(states.items()):
        if state != ABSENT and state.read != state.write:
            return f"it has {state.read} queues to read and {state.write} to write at {name}: it is being changed"
    return ""


def _bytes_of(text: str) -> float:
    """Total bytes of a text as "Total : 98.3 GiB, Free : 60 GiB."; 0 for other texts."""
    number, _, rest = text.partition("Total :")[2].strip().partition(" ")
    unit = rest.partition(",")[0].strip()
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        return 0.0
