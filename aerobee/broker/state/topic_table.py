"""The topics of one broker: existing topics, their creation, and the file config/topics.json.

Follows TopicConfigManager of RocketMQ. The file is RocketMQ's, so either product reads what the other wrote:

    {"dataVersion": {counter, stateVersion, timestamp}, "topicConfigTable": {name: TopicConfig}}

A slave's has `aerobeeCopiedTo` besides (copied()), and where topics were deleted `aerobeeDeleted`, {topic: where the log ended then}:
a topic may be created again, and its queues and offsets before that are not those of the new one. RocketMQ ignores both.

Invariants: the data version grows with every change, because a NameServer ignores a registration with a known version;
the file is written off the event loop (table_changes.py). A change by an administrator, or by the first send to a new
topic, is on disk before it is answered or announced. A topic that the broker creates for itself exists immediately, and
its file follows; a start that finds messages of such a topic recreates it (adopt).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config import PERM_INHERIT, PERM_READ, PERM_WRITE, BrokerConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.newest_names import newest_names, newest_of_peer
from aerobee.broker.state.table_changes import TableChanges, Told
from aerobee.clock import Clock
from aerobee.errors import StoreError, UsageError, WireError
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, check_topic_name
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.topic_config import BATCH, QUEUE_TYPE, SYS_FLAG_UNIT_SUBSCRIPTION, TopicConfig
from aerobee.system_names import (
    AUTO_CREATE_TEMPLATE,
    BENCHMARK_TOPIC,
    CLOUD_TRACE_PREFIX,
    HALF_TOPIC,
    NOT_SENDABLE,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    TRACE_TOPIC,
    WHEEL_TIMER_TOPIC,
)

log = logging.getLogger(__name__)

_ALWAYS_SYSTEM = NOT_SENDABLE | {
    AUTO_CREATE_TEMPLATE,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    "CHECKPOINT_TOPIC",
}
RETRY_QUEUE_PERM = PERM_READ | PERM_WRITE
COPIED_TO_FIELD = "aerobeeCopiedTo"
DELETED_FIELD = "aerobeeDeleted"
COPIED_TO_INTERVAL_S = 60.0  # maximum time between a change of a slave's copied_to and its write to the file


def takes_client_sends(topic: str) -> bool:
    """Whether clients may send to `topic`: not to topics with internal state of the broker, nor to dead-letter topics.

    Wider than TopicValidator.isNotAllowedSendTopic (RocketMQ), which lets any client write timer and revive records.
    """
    return not (
        topic in NOT_SENDABLE
        or topic.startswith(DLQ_PREFIX)
        or (topic.startswith(SYSTEM_PREFIX) and not topic.startswith(CLOUD_TRACE_PREFIX))
    )


ChangeCallback = Callable[[tuple[TopicConfig, ...]], None]
_Value = tuple[dict[str, TopicConfig], DataVersion, dict[str, int]]


def _legal(configs: Iterable[TopicConfig]) -> tuple[TopicConfig, ...]:
    """The same. Raises UsageError for an illegal name."""
    batch = tuple(configs)
    for config in batch:
        check_topic_name(config.topic_name)
    return batch


class TopicTable:
    """Topic name -> TopicConfig. Belongs to the event loop; no method but save(), load() and create_system_topics() blocks.

    `topics` may be read directly and is never assigned to from outside. The watchers (registration, the fast path) are
    called at each change with the configs that changed.
    """

    def __init__(
        self,
        *,
        file: ConfigFile | None,
        clock: Clock,
        bounds: Bounds | None = None,
        fallback: Callable[[str], TopicConfig | None] | None = None,
        log_end: Callable[[], int] = lambda: 0,
    ) -> None:
        """`bounds` limit the topics that requests may create; without them there is no limit. `fallback` is called for
        topics that are not in the table: those that need no creation. `log_end` is where the commit log ends now.
        """
        self._log_end = log_end
        # Log end at the deletion of a topic: earlier messages belong to no topic. Replaced, never changed.
        self.deleted: dict[str, int] = {}
        self._bounds = bounds
        self._file = file
        self._clock = clock
        self._watchers: list[ChangeCallback] = []
        self._system: set[str] = set(_ALWAYS_SYSTEM)
        self.topics: dict[str, TopicConfig] = {}
        # For each message before this log offset the table has the topic, or the topic was deleted. None:
        # this holds for all messages of the log.
        self.copied_to: int | None = None
        self._copied_to_due_s = clock.monotonic() + COPIED_TO_INTERVAL_S
        self._fallback = fallback
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self._changes: TableChanges[_Value, tuple[TopicConfig, ...]] = TableChanges(
            self, run=None if file is None else file.run, what="topics"
        )

    # --- reading

    def get(self, topic: str) -> TopicConfig | None:
        """The topic's settings; None when there is no such topic."""
        config = self.topics.get(topic)
        return config if config is not None or self._fallback is None else self._fallback(topic)

    def is_system(self, topic: str) -> bool:
        """True for topics that the broker makes for itself and that no client may delete."""
        return topic in self._system or topic.startswith(SYSTEM_PREFIX)

    def is_own(self, topic: str) -> bool:
        """True for the topics that this broker made for itself; others with a system name may be deleted."""
        return topic in self._system

    @property
    def system_topics(self) -> frozenset[str]:
        """The topics that the broker made for itself."""
        return frozenset(self._system)

    def on_change(self, callback: ChangeCallback) -> None:
        """Call back after each change with the configs that changed; an empty tuple after a deletion."""
        self._watchers.append(callback)

    # --- changing

    async def put_async(self, configs: Iterable[TopicConfig], *, must_save: bool = True) -> None:
        """Create or replace topics. In the table, and durable, on return. Raises UsageError, RemoteError (too many topics),
        StoreError; none of `configs` is taken then. Without `must_save` a failed write leaves the change in memory.
        """
        batch = _legal(configs)
        try:
            await self._changes.change(self._putting(batch), batch)
        except StoreError:
            if must_save:
                raise
            self.put_all(batch)

    def create_then(self, config: TopicConfig, told: Told) -> None:
        """Create a topic unless it exists by then, and call `told`: with None when the topic is durable, otherwise with
        the UsageError, RemoteError or StoreError. The calls follow in the order of the creations, immediately after the
        table has the topic, so that the first request sends first. Its name was checked.
        """
        put = self._putting((config,), key="autoCreateTopicNumsMax")

        def create(value: _Value) -> _Value:
            return value if config.topic_name in value[0] else put(value)

        self._changes.change_then(create, (config,), told)

    def put(self, config: TopicConfig) -> TopicConfig:
        """Create or replace a topic, in memory immediately; the file follows. Raises UsageError for an illegal name."""
        self.put_all((config,))
        return config

    def put_all(self, configs: Iterable[TopicConfig]) -> None:
        """Create or replace several topics with one notice. Raises UsageError, RemoteError (too many topics)."""
        batch = _legal(configs)
        if batch:
            self._take_now(self._putting(batch)(self.current())[0], batch)

    def _putting(
        self, batch: tuple[TopicConfig, ...], key: str = "topicNumsMax"
    ) -> Callable[[_Value], _Value]:
        """The change that puts `batch`."""

        def put(value: _Value) -> _Value:
            topics, version, deleted = value
            new = sum(config.topic_name not in topics for config in batch)
            if new and self._bounds is not None:
                self._bounds.require(key, len(topics) + new, "topics of this broker")
            return {**topics, **{config.topic_name: config for config in batch}}, version, deleted

        return put

    async def delete_async(self, topics: Iterable[str], queues_of: Collection[str] = ()) -> list[str]:
        """Forget topics, durable on return; their messages are the store's business. Returns those that existed.

        `queues_of`: further deleted topics that have queues but perhaps no settings, such as LMQs: replicas are
        notified of them. Raises StoreError; all of them are kept then.
        """
        known = [topic for topic in topics if topic in self.topics]

        def delete(value: _Value) -> _Value:
            left = {name: config for name, config in value[0].items() if name not in known}
            gone = {*(value[0].keys() - left.keys()), *queues_of}
            if not gone:
                return value
            return left, value[1], self._with_deleted(value[2], gone)

        await self._changes.change(delete, ())
        return known

    def delete(self, topic: str) -> bool:
        """Forget a topic, in memory immediately; the file follows. Returns whether it existed."""
        if topic not in self.topics:
            return False
        self.deleted = self._with_deleted(self.deleted, (topic,))
        self._take_now({name: config for name, config in self.topics.items() if name != topic}, ())
        return True

    def begin_epoch(self, epoch: int) -> None:
        """Give the table a version of this master epoch: a nameserver refuses a master whose epoch is older."""
        if epoch != self.data_version.state_version:
            self.data_version = self.data_version.next(self._clock.now_ms(), state_version=epoch)
            self.touch()

    def touch(self) -> None:
        """Give the unchanged table a new version, so that nameservers take it in again."""
        self._take_now(self.topics, ())

    def from_template(
        self, topic: str, *, template: str, queue_nums: int, unit_flag: int = 0, allow: bool = True
    ) -> TopicConfig | None:
        """The topic as a sender requests its creation, if its template exists and may be inherited from; else None.

        `allow` is autoCreateTopicEnable: when off, no internal topic of the broker is a template; a topic that an
        operator created with the inherit bit still is. Source: TopicConfigManager.createTopicInSendMessageMethod, which
        looks at TBW102 only, so that the topics of the broker's and the cluster's name stay open to any client.
        """
        model = self.topics.get(template)
        if model is None or not model.perm & PERM_INHERIT or (self.is_own(template) and not allow):
            return None
        queues = max(0, min(queue_nums, model.write_queue_nums))
        return TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=model.perm & ~PERM_INHERIT,
            topic_filter_type=model.topic_filter_type,
            topic_sys_flag=unit_flag,
        )

    def create_internal(
        self, topic: str, *, queue_nums: int = 1, perm: int = RETRY_QUEUE_PERM, unit_flag: int = 0
    ) -> TopicConfig:
        """Return the topic, created if it is not there. For topics that the broker itself needs; no bound applies.

        The file follows; one that the disk does not take lives in memory, as groups do (group_table.py).
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
            self._take_now({**self.topics, topic: config}, (config,))
        return config

    def grow_internal(self, topic: str, queue_nums: int, *, unit_flag: int = 0) -> TopicConfig:
        """Return the internal topic with at least `queue_nums` queues to read and to write, created if it does not exist."""
        config = self.create_internal(topic, queue_nums=queue_nums, unit_flag=unit_flag)
        grown = _grown(config, queue_nums)
        if grown is not config:
            self._take_now({**self.topics, topic: grown}, (grown,))
        return grown

    def retry_topic(self, group: str, queue_nums: int = 1, unit: bool = False) -> TopicConfig:
        """The required config of %RETRY%group for `queue_nums` retry queues: unchanged, grown, or new."""
        known = self.topics.get(RETRY_PREFIX + group)
        if known is not None:
            return _grown(known, queue_nums)
        flag = SYS_FLAG_UNIT_SUBSCRIPTION if unit else 0
        return TopicConfig(RETRY_PREFIX + group, queue_nums, queue_nums, topic_sys_flag=flag)

    def create_retry_topic(self, group: str, queue_nums: int = 1, unit: bool = False) -> TopicConfig:
        """%RETRY%group with at least `queue_nums` queues, created if it does not exist.

        RocketMQ keeps the queues of the topic's creation, and never delivers what it stores behind them.
        """
        flag = SYS_FLAG_UNIT_SUBSCRIPTION if unit else 0
        return self.grow_internal(RETRY_PREFIX + group, queue_nums, unit_flag=flag)

    def create_dead_letter_topic(self, group: str) -> TopicConfig:
        """%DLQ%group with at least one queue, readable, created if it does not exist."""
        return self.grow_internal(DLQ_PREFIX + group, 1)

    def existing_queue(self, topic: str, queue_id: int) -> int:
        """The queue that stores a message which was sent to `queue_id` earlier: the same one as long as the topic has it.

        A topic that was shrunk meanwhile has fewer queues than its waiting messages name (delayed and timer messages, half
        messages). Messages of one vanished queue all go to the same existing one, so they keep their order. The broker's
        own topics, and topics that do not exist, keep `queue_id`.
        """
        config = self.get(topic)
        if config is None or self.is_system(topic):
            return queue_id
        if queue_id < max(config.read_queue_nums, config.write_queue_nums):
            return queue_id
        return queue_id % max(1, config.write_queue_nums or config.read_queue_nums)

    def set_order_topics(self, order_table: Mapping[str, str]) -> None:
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
        """Make what must exist at every start, with one write that blocks. Topics already there are left as they are.

        Raises StoreError.
        """
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
            f"{REVIVE_PREFIX}{config.broker_cluster_name}": (8, rw),
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
            self.topics = {**self.topics, **{config.topic_name: config for config in missing}}
            self.data_version = self.data_version.next(self._clock.now_ms())
            self.save()

    def adopt(self, queues: Iterable[tuple[str, int]]) -> list[str]:
        """Recreate retry and dead-letter topics that have queues with messages, (topic, queue id), but no config.

        The broker creates these topics itself, and a kill may have lost the last write of their file. Returns their
        names.
        """
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and topic not in self.topics:
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, queue_nums in counts.items():
            self.topics = {
                **self.topics,
                topic: TopicConfig(topic, queue_nums, queue_nums, RETRY_QUEUE_PERM),
            }
        return list(counts)

    def make_again(self, queue_counts: Mapping[str, int], batch_topics: Collection[str] = ()) -> list[str]:
        """Make topics that a master made shortly before it was lost, and of which there are messages; the file follows.
        Topics of `batch_topics`, also known ones, get batch queues.

        Returns the names of the new ones. No bound applies; a name that is not legal is left out.
        """
        made = []
        retyped = [
            dataclasses.replace(config, attributes={**config.attributes, QUEUE_TYPE: BATCH})
            for topic in batch_topics
            if (config := self.topics.get(topic)) is not None and not config.is_batch
        ]
        for topic, queue_nums in queue_counts.items():
            try:
                check_topic_name(topic)
            except UsageError as error:
                log.warning("messages of a topic that cannot be: %s", error)
            else:
                attributes = {QUEUE_TYPE: BATCH} if topic in batch_topics else {}
                made.append(TopicConfig(topic, queue_nums, queue_nums, attributes=attributes))
        if changed := (*made, *retyped):
            self._take_now({**self.topics, **{config.topic_name: config for config in changed}}, changed)
        return [config.topic_name for config in made]

    def copied(self, log_offset: int | None) -> None:
        """The table is what a master's was when its log ended at `log_offset` or behind it. None: it is this broker's own."""
        now = self._clock.monotonic()
        is_other = (log_offset is None) != (self.copied_to is None)
        is_old = log_offset != self.copied_to and now >= self._copied_to_due_s
        self.copied_to = log_offset
        if is_other or is_old:
            # The file must not lag far behind: late deliveries of a master to a deleted topic count as
            # missed.
            self._copied_to_due_s = now + COPIED_TO_INTERVAL_S
            self._changes.write_soon()

    def log_cut(self, log_offset: int) -> None:
        """The log after `log_offset` comes from another master."""
        if any(end > log_offset for end in self.deleted.values()):
            self.deleted = {topic: end for topic, end in self.deleted.items() if end <= log_offset}
            # The entries may be those of the next master, whose table has the same version as this one: the
            # whole table must be copied.
            self.data_version = DataVersion()
            self._changes.write_soon()
        if self.copied_to is not None and log_offset < self.copied_to:
            self.copied_to = log_offset
            self._changes.write_soon()  # the file must not say more than is known

    def copy_from(
        self,
        topics: Mapping[str, TopicConfig],
        version: DataVersion,
        deleted: Mapping[str, int] | None = None,
    ) -> None:
        """Replace the table in memory by a master's table and version. The file follows.

        `deleted` is the master's; None: the master does not report them, and the local values stay.
        """
        before, table = self.topics, dict(topics)
        changed = tuple(config for name, config in table.items() if before.get(name) != config)
        self._set((table, version, self.deleted if deleted is None else dict(deleted)), (changed,))
        if changed and before.keys() - table.keys():
            self._tell(())
        self._changes.write_soon()

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
        self.copied_to = _log_offset_of(tree.get(COPIED_TO_FIELD))
        self.deleted = deletions_of(tree.get(DELETED_FIELD)) or {}

    def save(self) -> None:
        """Write the file, blocking. Raises StoreError."""
        if self._file is not None:
            self.write(self.current())

    def retry(self) -> None:
        """Retry a write that failed, if there is one."""
        self._changes.retry()

    async def settled(self) -> None:
        """Return when every requested change is in the file, or refused."""
        await self._changes.settled()

    @property
    def is_unsaved(self) -> bool:
        """Whether memory has changes whose write failed; retry() writes them again."""
        return self._changes.is_unsaved

    def abandon(self) -> None:
        """Write nothing more, as after a kill."""
        self._changes.abandon()

    def to_json(self) -> dict[str, Any]:
        """The file's content; also what slaves fetch, without the mapping tables."""
        return _file_content(self.topics, self.data_version)

    # --- for table_changes.py

    def current(self) -> _Value:
        return self.topics, self.data_version, self.deleted

    def sealed(self, value: _Value) -> _Value:
        topics, version, deleted = value
        return topics, version.next(self._clock.now_ms()), deleted

    def take(self, value: _Value, notes: Sequence[tuple[TopicConfig, ...]]) -> None:
        gone = [topic for topic, end in value[2].items() if self.deleted.get(topic) != end]
        self._set(value, notes)
        if gone and max(value[2][topic] for topic in gone) < self._log_end():
            # Messages came while the file was written. From here on the topic takes none.
            self.deleted = self._with_deleted(self.deleted, gone)
            self._changes.write_soon()

    def _set(self, value: _Value, notes: Sequence[tuple[TopicConfig, ...]]) -> None:
        self.topics, self.data_version, self.deleted = value
        self._tell(tuple(config for configs in notes for config in configs))

    def write(self, value: _Value) -> None:
        assert self._file is not None
        copied_to = self.copied_to  # may be ahead of `value` by some turns: nothing was deleted in between
        extra: dict[str, Any] = {COPIED_TO_FIELD: copied_to} if copied_to is not None else {}
        if value[2]:
            extra[DELETED_FIELD] = value[2]
        self._file.write({**_file_content(*value[:2]), **extra})

    def _with_deleted(self, deleted: Mapping[str, int], topics: Iterable[str]) -> dict[str, int]:
        """The deletions with those of `topics`, the newest last."""
        end, names = self._log_end(), set(topics)
        kept = {topic: offset for topic, offset in deleted.items() if topic not in names}
        return newest_names({**kept, **dict.fromkeys(sorted(names), end)})

    def _take_now(self, topics: dict[str, TopicConfig], configs: tuple[TopicConfig, ...]) -> None:
        self.topics, self.data_version = topics, self.data_version.next(self._clock.now_ms())
        self._tell(configs)
        self._changes.write_soon()

    def _tell(self, configs: tuple[TopicConfig, ...]) -> None:
        for watcher in self._watchers:
            watcher(configs)


def _grown(config: TopicConfig, queue_nums: int) -> TopicConfig:
    """The same with at least `queue_nums` queues to read and to write; `config` itself when it has them."""
    if min(config.read_queue_nums, config.write_queue_nums) >= queue_nums:
        return config
    return dataclasses.replace(
        config,
        read_queue_nums=max(config.read_queue_nums, queue_nums),
        write_queue_nums=max(config.write_queue_nums, queue_nums),
    )


def deletions_of(value: object) -> dict[str, int] | None:
    """The deletions of a file or of a master's answer; None without any. Invalid ones are skipped."""
    if not isinstance(value, dict):
        return None
    found = {
        topic: end
        for topic, end in newest_of_peer(value).items()
        if isinstance(topic, str) and type(end) is int and 0 <= end < 1 << 63
    }
    if len(found) < len(value):
        log.warning(
            "%s has %d entries that are none and are left out", DELETED_FIELD, len(value) - len(found)
        )
    return found


def _log_offset_of(value: object) -> int | None:
    """The file's `aerobeeCopiedTo`; an invalid log offset is ignored, so that no start fails because of it."""
    if value is None or (type(value) is int and 0 <= value < 1 << 63):
        return value
    log.warning(
        "config/topics.json: %s is %.40r, no offset of a log; it is passed over", COPIED_TO_FIELD, value
    )
    return None


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
