"""The topics of one broker: what exists, how it is made, and the file config/topics.json.

Follows TopicConfigManager of RocketMQ. The file is RocketMQ's, so either product reads what the other wrote:

    {"dataVersion": {counter, stateVersion, timestamp}, "topicConfigTable": {name: TopicConfig}}

What always holds: the data version grows with every change, for a nameserver ignores a registration whose version
it has already; a change is on disk before anybody is told of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aerobee.broker.bounds import Bounds
from aerobee.broker.config import PERM_INHERIT, PERM_READ, PERM_WRITE, BrokerConfig
from aerobee.broker.config_file import ConfigFile
from aerobee.clock import Clock
from aerobee.errors import StoreError, UsageError, WireError
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, check_topic_name
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.topic_config import SYS_FLAG_UNIT_SUBSCRIPTION, TopicConfig

log = logging.getLogger(__name__)

AUTO_CREATE_TEMPLATE = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
WHEEL_TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_PREFIX = "rmq_sys_"
CLOUD_TRACE_PREFIX = "rmq_sys_TRACE_DATA_"  # clients with the cloud channel write their traces to it
# Answered with NO_PERMISSION when a client sends to them (TopicValidator).
NOT_SENDABLE = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    }
)
_ALWAYS_SYSTEM = NOT_SENDABLE | {
    AUTO_CREATE_TEMPLATE,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    "CHECKPOINT_TOPIC",
}
RETRY_QUEUE_PERM = PERM_READ | PERM_WRITE


def takes_client_sends(topic: str) -> bool:
    """Whether clients may send to `topic`: not to what the broker keeps its own state in, nor to dead letters.

    Wider than TopicValidator.isNotAllowedSendTopic (RocketMQ), which lets anybody write timer and revive records.
    """
    return not (
        topic in NOT_SENDABLE
        or topic.startswith(DLQ_PREFIX)
        or (topic.startswith(SYSTEM_PREFIX) and not topic.startswith(CLOUD_TRACE_PREFIX))
    )


ChangeCallback = Callable[[tuple[TopicConfig, ...]], None]


class TopicTable:
    """Topic name -> TopicConfig. Belongs to the event loop; every method but `put_beside` blocks for the file's write.

    `topics` may be read directly and is never assigned to from outside. Changes are written to the file first, then
    told to the watchers (registration, the fast path) with the configs that changed.
    """

    def __init__(
        self,
        *,
        file: ConfigFile | None,
        clock: Clock,
        bounds: Bounds | None = None,
        fallback: Callable[[str], TopicConfig | None] | None = None,
    ) -> None:
        """`bounds` say how many topics requests may make; without them as many as they like. `fallback` is asked for
        topics that are not in the table: those that need no creation.
        """
        self._bounds = bounds
        self._file = file
        self._clock = clock
        self._watchers: list[ChangeCallback] = []
        self._system: set[str] = set(_ALWAYS_SYSTEM)
        self.topics: dict[str, TopicConfig] = {}
        self._fallback = fallback
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self._file_lock = threading.Lock()  # around what decides on a write, and the write
        self._turn = asyncio.Lock()  # one write beside the event loop at a time
        self._queued: dict[str, TopicConfig] = {}  # what the next of them takes
        self._queued_count = 0
        self._taken_count = 0  # how many of those queued are on disk, or replaced by what is

    # --- reading

    def get(self, topic: str) -> TopicConfig | None:
        """The topic's settings; None when there is no such topic."""
        config = self.topics.get(topic)
        return config if config is not None or self._fallback is None else self._fallback(topic)

    def is_system(self, topic: str) -> bool:
        """True for topics that the broker makes for itself and that nobody may delete."""
        return topic in self._system or topic.startswith(SYSTEM_PREFIX)

    def is_own(self, topic: str) -> bool:
        """True for the topics that this broker made for itself; others with a system name may be deleted."""
        return topic in self._system

    @property
    def system_topics(self) -> frozenset[str]:
        return frozenset(self._system)

    def on_change(self, callback: ChangeCallback) -> None:
        """Call back after each change with the configs that changed; an empty tuple after a deletion."""
        self._watchers.append(callback)

    # --- changing

    def put(self, config: TopicConfig) -> TopicConfig:
        """Create or replace a topic. Raises UsageError for an illegal name, StoreError when it cannot be saved."""
        check_topic_name(config.topic_name)
        self._require_room((config.topic_name,))
        return self._change((config,))[0]

    def put_all(self, configs: Iterable[TopicConfig]) -> None:
        """Create or replace several topics with one write and one notice."""
        batch = tuple(configs)
        for config in batch:
            check_topic_name(config.topic_name)
        self._require_room(config.topic_name for config in batch)
        if batch:
            self._change(batch)

    async def put_beside(self, configs: Iterable[TopicConfig], *, must_save: bool = True) -> None:
        """Create or replace topics; the file is written by a thread, once for all that ask meanwhile.

        For what comes by the thousand, a script that makes topics or groups that are new: writes in the event loop
        would keep everybody waiting for the disk. In the table, and durable, on return. Raises UsageError, StoreError;
        none of `configs` is taken then. Without `must_save` they live in memory when the disk refuses.
        """
        batch = {config.topic_name: config for config in configs}
        for topic in batch:
            check_topic_name(topic)
        self._require_room(batch, len(self._queued))
        self._queued.update(batch)
        self._queued_count += 1
        number = self._queued_count
        try:
            async with self._turn:
                if self._taken_count < number:
                    await self._take_queued()
        except StoreError as error:
            if must_save:
                raise
            log.warning("topics that the broker made for itself are not saved yet: %s", error)
            self.topics, self.data_version = {**self.topics, **batch}, self._next_version()
            self._tell(tuple(batch.values()))
        finally:
            for topic, config in batch.items():
                if self._queued.get(topic) is config:
                    del self._queued[topic]

    async def _take_queued(self) -> None:
        """Write the table with what is queued, then have it. Anew when the table changed during the write."""
        while True:
            queued, count = dict(self._queued), self._queued_count
            before, version = self.topics, self.data_version
            topics, next_version = {**before, **queued}, self._next_version()
            if self._file is not None:
                await asyncio.to_thread(self._write_unless_changed, before, version, topics, next_version)
            if self.topics is before and self.data_version is version:
                break
        self.topics, self.data_version = topics, next_version
        self._taken_count = count
        for topic, config in queued.items():
            if self._queued.get(topic) is config:
                del self._queued[topic]
        self._tell(tuple(queued.values()))

    def _write_unless_changed(
        self,
        before: dict[str, TopicConfig],
        version: DataVersion,
        topics: dict[str, TopicConfig],
        next_version: DataVersion,
    ) -> None:
        """In a thread. A table that changed before this write has been saved: older content must not replace it."""
        with self._file_lock:
            if self.topics is before and self.data_version is version:
                assert self._file is not None
                self._file.write(_file_content(topics, next_version))

    def _require_room(self, names: Iterable[str], others: int = 0, key: str = "topicNumsMax") -> None:
        """Raise RemoteError when the new ones of `names` would be too many; `others` are on the way."""
        new = sum(name not in self.topics for name in names)
        if new and self._bounds is not None:
            self._bounds.require(key, len(self.topics) + new + others, "topics of this broker")

    def delete(self, topic: str) -> bool:
        """Forget a topic; its messages are the store's business. Returns whether it existed."""
        if topic not in self.topics:
            return False
        before = self.topics
        self.topics = {name: config for name, config in before.items() if name != topic}
        try:
            self._commit(())
        except StoreError:
            self.topics = before
            raise
        return True

    def touch(self) -> None:
        """Give the unchanged table a new version, so that nameservers take it in again."""
        self._commit(())

    def create_from_template(
        self, topic: str, *, template: str, queue_nums: int, unit_flag: int = 0, allow: bool = True
    ) -> TopicConfig | None:
        """Create `topic` as a sender wants it, if its template exists and may be inherited from; else None.

        `allow` is autoCreateTopicEnable: when off, none of the broker's own topics is a template; one that an operator
        made with the inherit bit still is. Source: TopicConfigManager.createTopicInSendMessageMethod, which looks at
        TBW102 only, so that the topics of the broker's and the cluster's name stay open to anybody.
        """
        model = self.topics.get(template)
        if model is None or not model.perm & PERM_INHERIT or (self.is_own(template) and not allow):
            return None
        self._require_room((topic,), key="autoCreateTopicNumsMax")
        queues = max(0, min(queue_nums, model.write_queue_nums))
        return self.put(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=model.perm & ~PERM_INHERIT,
                topic_filter_type=model.topic_filter_type,
                topic_sys_flag=unit_flag,
            )
        )

    def create_internal(
        self, topic: str, *, queue_nums: int = 1, perm: int = RETRY_QUEUE_PERM, unit_flag: int = 0
    ) -> TopicConfig:
        """Return the topic, created if it is not there. For topics that the broker itself needs.

        One that the disk does not take lives in memory, as groups do (group_table.py).
        """
        config = self.topics.get(topic)
        if config is None:
            check_topic_name(topic)
            config = TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_nums,
                write_queue_nums=queue_nums,
                perm=perm,
                topic_sys_flag=unit_flag,
            )
            self._change((config,), must_save=False)
        return config

    def grow_internal(self, topic: str, queue_nums: int) -> TopicConfig:
        """Return the internal topic with at least so many queues, created if it is not there."""
        config = self.create_internal(topic, queue_nums=queue_nums)
        if config.write_queue_nums < queue_nums or config.read_queue_nums < queue_nums:
            config = dataclasses.replace(config, read_queue_nums=queue_nums, write_queue_nums=queue_nums)
            self._change((config,), must_save=False)
        return config

    def create_retry_topic(self, group: str, queue_nums: int = 1, unit: bool = False) -> TopicConfig:
        """%RETRY%group, created if it is not there."""
        return self.create_internal(
            RETRY_PREFIX + group, queue_nums=queue_nums, unit_flag=SYS_FLAG_UNIT_SUBSCRIPTION if unit else 0
        )

    def create_dead_letter_topic(self, group: str) -> TopicConfig:
        """%DLQ%group, created if it is not there; one queue, readable."""
        return self.create_internal(DLQ_PREFIX + group)

    def mark_order_topics(self, order_table: Mapping[str, str]) -> None:
        """Set `order` on the topics that a nameserver's order configuration names. No new data version.

        Source: TopicConfigManager.updateOrderTopicConfig, which changes the version; here the nameserver, which
        sent it, knows already.
        """
        marked = {
            topic: dataclasses.replace(config, order=True)
            for topic in order_table
            if (config := self.topics.get(topic)) is not None and not config.order
        }
        if marked:
            self.topics = {**self.topics, **marked}

    def create_system_topics(self, config: BrokerConfig) -> None:
        """Make what must exist at every start, with one write. Topics already there are left as they are."""
        rw = PERM_READ | PERM_WRITE
        wanted = {
            SELF_TEST_TOPIC: (1, rw),
            BENCHMARK_TOPIC: (1024, rw),
            OFFSET_MOVED_TOPIC: (1, rw),
            SCHEDULE_TOPIC: (18, rw),
            HALF_TOPIC: (1, rw),
            OP_TOPIC: (1, rw),
            "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": (1, rw),
            "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": (1, rw),
            WHEEL_TIMER_TOPIC: (1, rw),
            f"{config.broker_cluster_name}_REPLY_TOPIC": (1, rw),
            f"{SYSTEM_PREFIX}REVIVE_LOG_{config.broker_cluster_name}": (8, rw),
            f"{SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{config.broker_name}": (1, PERM_INHERIT),
            config.broker_cluster_name: (
                16,
                (rw | PERM_INHERIT) if config.cluster_topic_enable else PERM_INHERIT,
            ),
            config.broker_name: (1, (rw | PERM_INHERIT) if config.broker_topic_enable else PERM_INHERIT),
        }
        if config.auto_create_topic_enable:
            wanted[AUTO_CREATE_TEMPLATE] = (config.default_topic_queue_nums, rw | PERM_INHERIT)
        if config.trace_topic_enable:
            wanted[config.msg_trace_topic_name] = (1, rw)
        self._system.update(wanted)
        missing = [
            TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count, perm=perm)
            for name, (count, perm) in wanted.items()
            if name not in self.topics
        ]
        if missing:
            self._change(tuple(missing))

    # --- the file

    def load(self) -> None:
        """Read the file; a file that is not there is an empty table. Raises StoreError for one that is broken."""
        tree = self._file.read() if self._file is not None else None
        if tree is None:
            return
        try:
            table = tree.get("topicConfigTable") or {}
            self.topics = {name: TopicConfig.from_dict(value) for name, value in table.items()}
            if tree.get("dataVersion"):
                self.data_version = DataVersion.from_dict(tree["dataVersion"])
        except (ValueError, TypeError, KeyError, AttributeError, WireError) as error:
            raise StoreError(f"config/topics.json is not a topic table: {error}") from error

    def save(self) -> None:
        """Write the file. Raises StoreError."""
        if self._file is not None:
            with self._file_lock:
                self._file.write(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The file's content; also what slaves fetch, without the mapping tables."""
        return _file_content(self.topics, self.data_version)

    def _next_version(self) -> DataVersion:
        version = self.data_version
        return DataVersion(
            state_version=version.state_version, timestamp=self._clock.now_ms(), counter=version.counter + 1
        )

    def _tell(self, configs: tuple[TopicConfig, ...]) -> None:
        for watcher in self._watchers:
            watcher(configs)

    def _change(self, configs: tuple[TopicConfig, ...], *, must_save: bool = True) -> tuple[TopicConfig, ...]:
        before = self.topics
        self.topics = {**before, **{config.topic_name: config for config in configs}}
        try:
            self._commit(configs, must_save=must_save)
        except StoreError:
            self.topics = before
            raise
        return configs

    def _commit(self, configs: tuple[TopicConfig, ...], *, must_save: bool = True) -> None:
        """New version, file, notice, in this order. Without `must_save` a disk that refuses is only logged."""
        version = self.data_version
        self.data_version = self._next_version()
        try:
            self.save()
        except StoreError as error:
            if must_save:
                self.data_version = version
                raise
            log.warning("topics that the broker made for itself are not saved yet: %s", error)
        self._tell(configs)


def _file_content(topics: Mapping[str, TopicConfig], version: DataVersion) -> dict[str, Any]:
    return {
        "dataVersion": version.to_dict(),
        "topicConfigTable": {name: config.to_dict() for name, config in topics.items()},
    }


def check_creatable(table: TopicTable, topic: str) -> None:
    """Raise UsageError unless a user may create or change `topic`."""
    check_topic_name(topic)
    if table.is_system(topic):
        raise UsageError(f"topic {topic!r} belongs to the broker itself and cannot be created or changed")
