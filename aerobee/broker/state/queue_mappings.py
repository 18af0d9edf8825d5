"""Static topics of one broker: topic -> the logical queues that have a part at this broker, and the file
topicQueueMapping.json.

Follows TopicQueueMappingManager and the checks of TopicQueueMappingUtils (RocketMQ). The file is RocketMQ's:

    {"dataVersion": {counter, stateVersion, timestamp}, "topicQueueMappingInfoMap": {topic: TopicQueueMappingDetail}}

Invariants: an accepted item keeps its broker, queue and start, and its logical begin once it is decided, because
committed offsets depend on them; an update with an older epoch changes nothing. RocketMQ writes the first of these as
assertions, which its start scripts leave off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aerobee.broker.state.config_file import ConfigFile
from aerobee.clock import Clock
from aerobee.errors import StoreError, UsageError, WireError
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.queue_mapping import EPOCH_AHEAD_MS_MAX, Items, QueueMapping

FILE_NAME = "topicQueueMapping.json"
GEN_MAX, OFFSET_MAX = 2**31 - 2, 2**61  # sums of two offsets fit 64 bits, the next gen 32


class QueueMappings:
    """The mappings of this broker. Belongs to the event loop; `by_topic` may be read and is never assigned to from outside."""

    def __init__(self, *, file: ConfigFile | None, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self.by_topic: dict[str, QueueMapping] = {}
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self._turn = asyncio.Lock()

    def get(self, topic: str) -> QueueMapping | None:
        """The mapping of a static topic, None for every other one."""
        return self.by_topic.get(topic)

    async def put(self, wanted: QueueMapping, *, force: bool = False) -> QueueMapping:
        """Take a mapping over; on disk on return. `force` replaces whatever epoch and items there were.

        Returns the effective mapping. Raises UsageError for a contradictory mapping, StoreError when it cannot be
        saved; nothing changes then.
        """
        async with self._turn:
            check_numbers(wanted, self._clock.now_ms())
            mapping = merged(self.by_topic.get(wanted.topic), wanted, force=force)
            if mapping != self.by_topic.get(wanted.topic):
                await self._change({**self.by_topic, wanted.topic: mapping})
            return mapping

    async def replace(self, known: QueueMapping, hosted: Mapping[int, Items]) -> bool:
        """Leave of a mapping what `hosted` has; on disk on return. Returns False when it changed meanwhile, and does nothing.

        Raises StoreError.
        """
        async with self._turn:
            if self.by_topic.get(known.topic) is not known:
                return False
            await self._change({**self.by_topic, known.topic: known.with_hosted(hosted)})
            return True

    async def delete(self, topic: str) -> bool:
        """Forget a topic's mapping. Returns whether there was one. Raises StoreError."""
        async with self._turn:
            if topic not in self.by_topic:
                return False
            await self._change({name: each for name, each in self.by_topic.items() if name != topic})
            return True

    async def copy_from(self, table: dict[str, QueueMapping], version: DataVersion) -> None:
        """Replace the mappings by a master's, with their version. On disk on return. Raises StoreError."""
        async with self._turn:
            await self._write(table, version)

    def infos(self, topics: Iterable[str]) -> dict[str, Any]:
        """The mappings for the registration of these topics, which contains only static ones."""
        if not self.by_topic:
            return {}
        return {topic: self.by_topic[topic].to_info() for topic in topics if topic in self.by_topic}

    def details(self, topics: Iterable[str]) -> dict[str, Any]:
        """The whole mappings of these topics, as tools and slaves read them."""
        if not self.by_topic:
            return {}
        return {topic: self.by_topic[topic].to_dict() for topic in topics if topic in self.by_topic}

    def load(self) -> None:
        """Read the file. Raises StoreError when it is not a table of mappings."""
        tree = None if self._file is None else self._file.read()
        if tree is None:
            return
        try:
            table = json_fields.mapping(tree, "topicQueueMappingInfoMap")
            self.by_topic = {
                name: QueueMapping.from_dict(json_fields.as_object(value, f"the mapping of {name[:80]!r}"))
                for name, value in table.items()
            }
            if tree.get("dataVersion"):
                self.data_version = DataVersion.from_dict(tree["dataVersion"])
        except (ValueError, TypeError, KeyError, AttributeError, WireError) as error:
            raise StoreError(f"config/{FILE_NAME} is not a table of queue mappings: {error}") from error

    async def _change(self, table: dict[str, QueueMapping]) -> None:
        before = self.data_version
        version = DataVersion(
            state_version=before.state_version, timestamp=self._clock.now_ms(), counter=before.counter + 1
        )
        await self._write(table, version)

    async def _write(self, table: dict[str, QueueMapping], version: DataVersion) -> None:
        if self._file is not None:
            content = {
                "dataVersion": version.to_dict(),
                "topicQueueMappingInfoMap": {name: mapping.to_dict() for name, mapping in table.items()},
            }
            file = self._file
            await file.run(lambda: file.write(content))
        self.by_topic, self.data_version = table, version


def check_numbers(mapping: QueueMapping, now_ms: int) -> None:
    """Raise UsageError for an epoch or numbers of items that leave no space for the next ones.

    An epoch is the time at which a tool set the mapping, or 1,000 above the last one: 2^63-1 could never be changed again.
    """
    if not 0 <= mapping.epoch <= now_ms + EPOCH_AHEAD_MS_MAX:
        raise UsageError(
            f"the mapping of {mapping.topic} has epoch {mapping.epoch}: it must be a time in ms, at most {EPOCH_AHEAD_MS_MAX // 86_400_000} "
            f"days ahead of {now_ms}"
        )
    for queue_id, items in mapping.hosted.items():
        for item in items:
            if item.gen > GEN_MAX or max(item.start_offset, item.end_offset, item.logic_offset) > OFFSET_MAX:
                raise UsageError(
                    f"logical queue {queue_id} of {mapping.topic}: gen is at most {GEN_MAX}, offsets are at most {OFFSET_MAX}"
                )


def merged(known: QueueMapping | None, wanted: QueueMapping, *, force: bool) -> QueueMapping:
    """The resulting mapping after applying `wanted`. Raises UsageError when it must not be."""
    for queue_id, items in wanted.hosted.items():
        _check_items(wanted.topic, queue_id, items)
    if known is None:
        return wanted
    if force:
        return wanted.with_hosted({**known.hosted, **wanted.hosted})
    if wanted.epoch < known.epoch:
        raise UsageError(
            f"the mapping of {wanted.topic} has epoch {wanted.epoch}, older than the {known.epoch} that is in force"
        )
    if wanted.scope != known.scope:
        raise UsageError(f"the mapping of {wanted.topic} has scope {wanted.scope}, in force is {known.scope}")
    same_epoch = wanted.epoch == known.epoch
    hosted = dict(wanted.hosted)
    for queue_id, items in known.hosted.items():
        new = hosted.setdefault(queue_id, items)
        if same_epoch and queue_id not in wanted.hosted:
            raise UsageError(
                f"the mapping of {wanted.topic} leaves out logical queue {queue_id}, with the epoch that is in force"
            )
        _check_unchanged(wanted.topic, queue_id, items, new, same_epoch=same_epoch)
    return wanted.with_hosted(hosted)


def _check_items(topic: str, queue_id: int, items: Items) -> None:
    """Raise UsageError unless the items of one logical queue follow each other."""
    what = f"logical queue {queue_id} of {topic}"
    for at, item in enumerate(items):
        if item.gen < 0 or item.queue_id < 0 or item.start_offset < 0:
            raise UsageError(f"{what}: gen, queueId and startOffset must not be below 0")
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            raise UsageError(f"{what}: an item ends at {item.end_offset}, before it begins")
        if at == len(items) - 1:
            continue
        following = items[at + 1]
        if not item.is_decided:
            raise UsageError(f"{what}: an item that is not the last has no logicOffset")
        if following.gen <= item.gen:
            raise UsageError(f"{what}: the gen of its items must grow")
        if following.is_decided and not item.logic_offset <= item.logic_end < following.logic_offset:
            raise UsageError(
                f"{what}: the logicOffset of its items must grow, and each begin behind the one before"
            )


def _check_unchanged(topic: str, queue_id: int, old: Items, new: Items, *, same_epoch: bool) -> None:
    """Raise UsageError when an item that is known became another."""
    by_gen = {item.gen: item for item in old}
    for item in new:
        known = by_gen.get(item.gen)
        if known is None:
            continue
        same = (known.broker_name, known.queue_id, known.start_offset) == (
            item.broker_name,
            item.queue_id,
            item.start_offset,
        )
        if not same or (known.is_decided and known.logic_offset != item.logic_offset):
            raise UsageError(
                f"logical queue {queue_id} of {topic}: item {item.gen} is another than the one in force"
            )
    if same_epoch and new[-1].gen != old[-1].gen:
        raise UsageError(
            f"logical queue {queue_id} of {topic} has another leader, with the epoch that is in force"
        )
