"""SQL92 filters by group and topic, stored in config/consumerFilter.json, and the bits of each filter.

Source: ConsumerFilterManager, ConsumerFilterData, CommitLogDispatcherCalcBitMap (RocketMQ). The file:

    {"filterDataByTopic":{topic:{"groupFilterData":{group:{
        "bloomFilterData":{"bitNum":112,"bitPos":[28,31,52]},"bornTime":ms,"clientVersion":subVersion,
        "consumerGroup":group,"dead":false,"deadTime":0,"expression":"a > 5","expressionType":"SQL92",
        "topic":topic}},"topic":topic}}}

A filter is created when its group subscribes or changes its expression, dead when the group has no members, and removed
a day later (filterDataCleanTimeSpan). With enableCalcFilterBitMap each message's queue entry gets the bits of all
filters of its topic that take it, dead ones too: a returning group skips messages that its filter does not match. Bits
do not cover messages stored before the filter was created, so those records are tested.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aerobee.broker.filter.bloom import BloomFilter, mask_of
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.subscription import SubscriptionData

log = logging.getLogger(__name__)

DEAD_BEFORE_LOAD_MS = 30_000  # a broker that was down does not know when its consumers left


@dataclass(slots=True)
class GroupFilter:
    """The filter of one group on one topic. `mask` has its bits; `test` takes properties with \\x02 in front."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    born_ms: int
    dead_ms: int
    bits: tuple[int, ...]
    bit_count: int
    mask: int = 0
    test: Callable[[bytes], bool] = field(default=lambda text: False)

    def to_dict(self) -> dict[str, Any]:
        """As an entry of consumerFilter.json."""
        return {
            "bloomFilterData": {"bitNum": self.bit_count, "bitPos": list(self.bits)},
            "bornTime": self.born_ms,
            "clientVersion": self.client_version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }

    @property
    def is_dead(self) -> bool:
        """Whether the filter's subscription has ended and not begun again. A renewed filter keeps `dead_ms`, as in
        RocketMQ.
        """
        return self.dead_ms >= self.born_ms

    def may_take(self, bitmap: bytes, stored_ms: int) -> bool:
        """Whether an entry with this bitmap may match the group's filter. True when the bits do not decide it."""
        if stored_ms <= self.born_ms or len(bitmap) * 8 != self.bit_count:
            return True
        return int.from_bytes(bitmap, "little") & self.mask == self.mask


class FilterTable:
    """All filters by topic and group. Belongs to the event loop; load() and save() block."""

    def __init__(
        self,
        *,
        expressions: Expressions,
        live: LiveConfig,
        clock: Clock,
        file: ConfigFile,
        last_stored_ms: Callable[[], int],
    ) -> None:
        """`last_stored_ms`: the store time of the newest message."""
        self._last_stored_ms = last_stored_ms
        self._expressions = expressions
        self._live = live
        self._clock = clock
        self._file = file
        self._topics: dict[str, dict[str, GroupFilter]] = {}
        self._dirty = False
        config = live.value
        self.bloom = BloomFilter(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)

    def _now_ms(self) -> int:
        """The time of a filter's creation or death: the minimum store time of the next message. Store times never go
        back, so they may be ahead of a corrected clock, and messages before a filter must not appear to be after it."""
        return max(self._clock.now_ms(), self._last_stored_ms())

    def find(self, group: str, topic: str) -> GroupFilter | None:
        """The filter of a group's SQL92 subscription; None for another kind, or none."""
        return self._topics.get(topic, {}).get(group)

    def bitmap(self, topic: str, properties: bytes) -> bytes:
        """The bits of all filters that take a message; empty when the topic has none."""
        filters = self._topics.get(topic)
        if not filters:
            return b""
        mask, text = 0, b"\x02" + properties
        for each in filters.values():
            if each.mask & ~mask and each.test(text):
                mask |= each.mask
        return mask.to_bytes(self.bloom.bit_count // 8, "little")

    def subscribed(self, group: str, subscriptions: Iterable[SubscriptionData] | None) -> None:
        """A heartbeat of a group arrived; None: its last member left."""
        named: set[str] = set()
        for item in subscriptions or ():
            if not item.is_tag_filter:
                named.add(item.topic)
                self._register(group, item)
        now_ms = self._now_ms()
        for topic, filters in self._topics.items():
            each = filters.get(group)
            if each is not None and topic not in named and not each.is_dead:
                each.dead_ms = now_ms
                self._dirty = True

    def _register(self, group: str, item: SubscriptionData) -> None:
        known = self.find(group, item.topic)
        if known is not None and item.sub_version <= known.client_version:
            if item.sub_version == known.client_version and known.is_dead:
                self._revive(known)
            return
        if known is not None and known.expression == item.sub_string:
            known.client_version = item.sub_version
            self._dirty = True
            if known.is_dead:
                self._revive(known)
            return
        try:
            test = self._expressions.get(item.sub_string).test.text
        except FilterSyntaxError:
            return  # the client was refused; there is no filter to store
        positions = self.bloom.positions(group, item.topic)
        self._topics.setdefault(item.topic, {})[group] = GroupFilter(
            item.topic,
            group,
            item.sub_string,
            item.expression_type,
            item.sub_version,
            self._now_ms(),
            0,
            positions,
            self.bloom.bit_count,
            mask_of(positions),
            test,
        )
        self._dirty = True

    def _revive(self, each: GroupFilter) -> None:
        # Its bits were set all the time, so it also covers messages stored since its death.
        each.dead_ms = 0
        self._dirty = True

    def clean(self) -> None:
        """Remove filters whose subscription ended more than a day ago (filterDataCleanTimeSpan)."""
        bound_ms = self._now_ms() - self._live.value.filter_data_clean_time_span
        for topic, filters in list(self._topics.items()):
            for group in [
                group for group, each in filters.items() if each.is_dead and each.dead_ms <= bound_ms
            ]:
                del filters[group]
                self._dirty = True
            if not filters:
                del self._topics[topic]

    # --- at a slave

    def copy_from(self, fields: json_fields.Fields) -> None:
        """Apply the new or newer filters of a master (its to_dict()). Raises MalformedFrame.

        The creation time of each is now: earlier local entries have no bits of it, even if the master's have. Filters
        that are dead or unknown at the master are dead here, and removed after a day.
        """
        now_ms = self._now_ms()
        living: set[tuple[str, str]] = set()
        for topic, group, item in _entries(fields):
            known = self.find(group, topic)
            if not json_fields.boolean(item, "dead", False):
                living.add((topic, group))
            version = json_fields.integer(item, "clientVersion", 0)
            if known is None or version > known.client_version:
                if known is not None and known.expression == json_fields.text(item, "expression"):
                    known.client_version = version
                else:
                    is_dead = json_fields.boolean(item, "dead", False)
                    self._load_one(
                        topic, group, {**item, "bornTime": now_ms, "deadTime": now_ms if is_dead else 0}
                    )
                self._dirty = True
        for topic, filters in self._topics.items():
            for group, each in filters.items():
                if (topic, group) in living and each.is_dead:
                    self._revive(each)
                elif (topic, group) not in living and not each.is_dead:
                    each.dead_ms = now_ms
                    self._dirty = True
        self.clean()
        self.save_soon()

    # --- persistence

    def load(self) -> None:
        """Read the file. All groups count as dead until their first heartbeat. A damaged file is replaced: consumers
        send their filters with each heartbeat, and until then messages are tested one by one."""
        fields = self._file.read_statistics()
        if fields is None:
            return
        try:
            for topic, group, item in _entries(fields):
                if json_fields.integer(item, "deadTime", 0) < json_fields.integer(item, "bornTime", 0):
                    born_ms = json_fields.integer(item, "bornTime", 0)
                    item = {**item, "deadTime": max(born_ms, self._now_ms() - DEAD_BEFORE_LOAD_MS)}
                self._load_one(topic, group, item)
        except MalformedFrame as error:
            log.warning(
                "config/consumerFilter.json is not a filter table: %s; starting with an empty one", error
            )
            self._topics.clear()
        self._dirty = False

    def _load_one(self, topic: str, group: str, item: json_fields.Fields) -> None:
        bloom = json_fields.mapping(item, "bloomFilterData")
        positions = self.bloom.positions(group, topic)
        stored = [
            json_fields.as_integer(bit, "a bit of bitPos") for bit in json_fields.items(bloom, "bitPos")
        ]
        if (json_fields.integer(bloom, "bitNum", 0), stored) != (self.bloom.bit_count, list(positions)):
            log.warning(
                "consumerFilter.json: the filter of %s on %s has other bits; it is recreated", group, topic
            )
            return
        expression = json_fields.text(item, "expression")
        try:
            test = self._expressions.get(expression).test.text
        except FilterSyntaxError as error:
            log.warning("consumerFilter.json: the filter of %s on %s is left out: %s", group, topic, error)
            return
        self._topics.setdefault(topic, {})[group] = GroupFilter(
            topic,
            group,
            expression,
            json_fields.text(item, "expressionType", "SQL92"),
            json_fields.integer(item, "clientVersion", 0),
            json_fields.integer(item, "bornTime", 0),
            json_fields.integer(item, "deadTime", 0),
            positions,
            self.bloom.bit_count,
            mask_of(positions),
            test,
        )

    def prepare_save(self) -> Callable[[], None] | None:
        """A function that writes the table as it is now and may block; None when nothing changed."""
        if not self._dirty:
            return None
        content = self.to_dict()
        self._dirty = False
        return lambda: self._file.write(content)

    def save_soon(self) -> None:
        """Write the file off the event loop when something changed."""
        write = self.prepare_save()
        if write is not None:
            self._file.write_soon(write)

    def save(self) -> None:
        """Write the file if the table changed or the file does not exist. Raises StoreError."""
        write = self.prepare_save()
        if write is not None:
            write()

    def to_dict(self) -> dict[str, Any]:
        """The content of consumerFilter.json."""
        return {
            "filterDataByTopic": {
                topic: {
                    "groupFilterData": {group: each.to_dict() for group, each in filters.items()},
                    "topic": topic,
                }
                for topic, filters in self._topics.items()
            }
        }


def _entries(fields: json_fields.Fields) -> Iterator[tuple[str, str, json_fields.Fields]]:
    """(topic, group, entry) of consumerFilter.json. Raises MalformedFrame."""
    for topic, entry in json_fields.mapping(fields, "filterDataByTopic").items():
        groups = json_fields.mapping(
            json_fields.as_object(entry, f"the filters of {topic[:80]!r}"), "groupFilterData"
        )
        for group, item in groups.items():
            yield topic, group, json_fields.as_object(item, f"the filter of {group[:80]!r}")
