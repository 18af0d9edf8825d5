"""The facts of `aerobee why`: broker state and traces about one group and, optionally, one message.

gather_group() and gather_message() collect them, why_rules.py evaluates them. Times are ms since the epoch. None means
that no broker reported the value.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from aerobee.client import Admin, ReceivedMessage
from aerobee.client.admin.explain import InvisibleMessage, QueueLock, SharedClientId, SubscriptionDifference
from aerobee.client.admin.transactions import TransactionInfo
from aerobee.client.base.results import ConsumerProgress, GroupConnections, GroupInfo, QueueProgress
from aerobee.client.base.trace_record import TraceEvent
from aerobee.client.base.verdict import LEVEL_DELAYS_S
from aerobee.errors import (
    AerobeeError,
    ConsumerNotOnline,
    QueryNotFound,
    RemoteError,
    RouteError,
    UsageError,
)
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, MessageQueue
from aerobee.system_names import HALF_TOPIC, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRates:
    """Messages a second over the last minute; None while a broker has no statistics yet."""

    stored: float | None
    handed_out: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group at one moment. `topics`: those with a subscription, offsets or locks of the group, without retry topics."""

    group: str
    now_ms: int
    settings: tuple[GroupInfo, ...]
    connections: GroupConnections | None
    differences: tuple[SubscriptionDifference, ...]
    shared_ids: tuple[SharedClientId, ...]
    progress: tuple[QueueProgress, ...]
    topics: tuple[str, ...]
    missing_topics: tuple[str, ...]
    rates: dict[str, TopicRates]
    locks: tuple[QueueLock, ...] | None
    invisible: tuple[InvisibleMessage, ...] | None
    dead_count: int

    @property
    def retry_count_max(self) -> int:
        """The group's retryMaxTimes, the largest of all brokers; -1: at least one broker retries without limit."""
        counts = [each.retry_count_max for each in self.settings]
        return -1 if -1 in counts else max(counts, default=16)

    def retry_text(self, tries: int) -> str:
        """ "retry 3 of 16", or "retry 3 (no limit)"."""
        bound = self.retry_count_max
        return f"retry {tries} (no limit)" if bound < 0 else f"retry {tries} of {bound}"

    def progress_of(self, queue: MessageQueue) -> QueueProgress | None:
        return next((each for each in self.progress if each.queue == queue), None)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A delayed copy of the message: in the topic of the delay levels, or in the timer's."""

    copy: ReceivedMessage
    due_ms: int
    for_topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A broker whose broker name has a copy. `log_end` and `confirmed` are physical offsets. `confirmed` is the master's confirm
    offset, 0 if it waits for no replica. `role` is the role that the broker reports, "" for RocketMQ's."""

    broker_name: str
    address: str
    is_master: bool
    role: str
    epoch: int
    log_end: int
    confirmed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """Every stored copy of one message, and the traces of it."""

    message_id: str
    searched: tuple[str, ...]
    stored: tuple[ReceivedMessage, ...] = ()
    retried: tuple[ReceivedMessage, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    half: tuple[ReceivedMessage, ...] = ()
    transaction: TransactionInfo | None = None
    dead: tuple[ReceivedMessage, ...] = ()
    trace: tuple[TraceEvent, ...] = ()
    oldest_ms: dict[str, int] = field(default_factory=dict)  # topic -> store time of its oldest message
    replicas: tuple[Replica, ...] = ()  # of the broker names that have a copy


async def gather_group(admin: Admin, group: str, topic: str | None) -> GroupFacts:
    """Collect the facts of a group, in all its topics or in one."""
    settings = tuple(each for each in await admin.groups() if each.name == group)
    connections = await _connections(admin, group)
    progress = (await _progress(admin, group)).queues
    locks, invisible = await admin.queue_locks(group), await admin.invisible_messages(group)
    subscribed = {each.topic for each in connections.subscriptions} if connections is not None else set()
    locked = {each.queue.topic for each in locks or ()}
    topics = {topic} if topic else subscribed | locked | {each.queue.topic for each in progress}
    names = tuple(sorted(name for name in topics if not name.startswith(RETRY_PREFIX)))
    known = set(await admin.topics())
    for name in sorted((subscribed & set(names) & known) - {each.queue.topic for each in progress}):
        progress += (
            await _progress(admin, group, name)
        ).queues  # members that consume but have not committed yet
    return GroupFacts(
        group=group,
        now_ms=time.time_ns() // 1_000_000,
        settings=settings,
        connections=connections,
        differences=await admin.subscription_differences(group),
        shared_ids=await admin.shared_client_ids(group),
        progress=progress,
        topics=names,
        missing_topics=tuple(name for name in names if name not in known),
        rates={name: await _rates(admin, group, name) for name in names if name in known},
        locks=None if locks is None else tuple(each for each in locks if each.queue.topic in (*names, "")),
        invisible=invisible and tuple(each for each in invisible if _is_of(each.queue.topic, group, names)),
        dead_count=await _count(admin, DLQ_PREFIX + group) if DLQ_PREFIX + group in known else 0,
    )


async def gather_message(admin: Admin, facts: GroupFacts, message_id: str, topic: str | None) -> MessageFacts:
    """Search a message in all topics that may contain a copy. `message_id`: unique key or offset message id."""
    group = facts.group
    named = await _by_offset_id(admin, message_id)
    if named is not None:
        message_id = named.message_id
        topic = topic or named.topic
    searched = (topic,) if topic else facts.topics
    retry_topics = [RETRY_PREFIX + group]
    for name in searched:
        retry_topics += [f"{RETRY_PREFIX}{group}_{name}", f"{RETRY_PREFIX}{group}+{name}"]
    candidates = (*searched, *retry_topics, DLQ_PREFIX + group, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC, HALF_TOPIC)
    copies = list(await admin.copies(candidates, message_id))
    if named is not None and not any(each.physical_offset == named.physical_offset for each in copies):
        copies.append(named)

    def of(*topics: str) -> tuple[ReceivedMessage, ...]:
        return tuple(each for each in copies if each.queue.topic in topics)

    levels = await _level_delays(admin)
    return MessageFacts(
        message_id=message_id,
        searched=searched,
        stored=tuple(each for each in copies if each.queue.topic in searched),
        retried=of(*retry_topics),
        waiting=tuple(_waiting(each, levels) for each in of(SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC)),
        half=of(HALF_TOPIC),
        transaction=await _transaction(admin, message_id) if of(HALF_TOPIC) else None,
        dead=of(DLQ_PREFIX + group),
        trace=await admin.trace(message_id),
        oldest_ms={name: await _oldest(admin, name) for name in searched if not of(name)},
        replicas=await _replicas(admin, {each.queue.broker_name for each in of(*searched)}),
    )


async def _replicas(admin: Admin, names: set[str]) -> tuple[Replica, ...]:
    """Every responding broker of these names, with the end of its log."""
    found: list[Replica] = []
    for info in await admin.brokers():
        if info.broker_name not in names:
            continue
        try:
            figures = await admin.broker_runtime(info.address)
        except AerobeeError:
            continue
        found.append(
            Replica(
                broker_name=info.broker_name,
                address=info.address,
                is_master=info.broker_id == 0,
                role=figures.get("haRole", ""),
                epoch=int(_digits(figures.get("haEpoch", "0")) or 0),
                log_end=int(_digits(figures.get("commitLogMaxOffset", "0")) or 0),
                confirmed=int(_digits(figures.get("haConfirmed", "0")) or 0),
            )
        )
    return tuple(found)


def _is_of(topic: str, group: str, topics: Sequence[str]) -> bool:
    """Whether a topic is one of these, or the group's retry topic for one of them, with pop or without."""
    retry = RETRY_PREFIX + group
    return (
        topic in topics
        or topic == retry
        or topic in {f"{retry}{separator}{name}" for name in topics for separator in "_+"}
    )


async def _connections(admin: Admin, group: str) -> GroupConnections | None:
    try:
        return await admin.consumer_connections(group)
    except ConsumerNotOnline:
        return None


async def _progress(admin: Admin, group: str, topic: str | None = None) -> ConsumerProgress:
    try:
        return await admin.consumer_progress(group, topic)
    except RemoteError:
        return ConsumerProgress(group=group, queues=(), consume_tps=0.0)  # a group without any offset


async def _rates(admin: Admin, group: str, topic: str) -> TopicRates:
    async def rate(address: str, name: str, key: str) -> float | None:
        try:
            return (await admin.broker_stats(address, name, key)).minute_tps
        except RemoteError:
            return None

    masters = [info.address for info in await admin.brokers() if info.broker_id == 0]
    stored = [await rate(address, "TOPIC_PUT_NUMS", topic) for address in masters]
    handed_out = [await rate(address, "GROUP_GET_NUMS", f"{topic}@{group}") for address in masters]
    return TopicRates(stored=_sum(stored), handed_out=_sum(handed_out))


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


async def _count(admin: Admin, topic: str) -> int:
    try:
        return sum(each.max_offset - each.min_offset for each in await admin.topic_stats(topic))
    except (RemoteError, RouteError):
        return 0


async def _oldest(admin: Admin, topic: str) -> int:
    """The store time of the oldest message of a topic; 0 when there is none."""
    oldest = 0
    try:
        for each in await admin.topic_stats(topic):
            if each.max_offset > each.min_offset:
                first = await admin.message_at(each.queue, each.min_offset)
                oldest = min(oldest or first.store_timestamp, first.store_timestamp)
    except (RemoteError, RouteError):
        return oldest
    return oldest


async def _by_offset_id(admin: Admin, message_id: str) -> ReceivedMessage | None:
    """The message with an offset message id; None for a unique key."""
    try:
        return await admin.message(message_id)
    except (UsageError, QueryNotFound, RemoteError):
        return None


async def _transaction(admin: Admin, transaction_id: str) -> TransactionInfo | None:
    try:
        found = await admin.transactions(transaction_id=transaction_id)
    except RemoteError:
        return None
    return found.transactions[0] if found.transactions else None


async def _level_delays(admin: Admin) -> tuple[float, ...]:
    """The delays of the levels in seconds, from the first broker that reports them."""
    for info in await admin.brokers():
        if info.broker_id == 0:
            try:
                text = (await admin.broker_config(info.address)).get("messageDelayLevel", "")
                return tuple(int(each[:-1]) * _UNIT_S[each[-1]] for each in text.split()) or LEVEL_DELAYS_S
            except (AerobeeError, KeyError, ValueError):
                continue
    return LEVEL_DELAYS_S


def _waiting(copy: ReceivedMessage, levels: tuple[float, ...]) -> Waiting:
    properties = copy.properties
    for_topic = properties.get("REAL_TOPIC", "")
    if copy.queue.topic == WHEEL_TIMER_TOPIC:
        return Waiting(copy, int(_digits(properties.get("TIMER_OUT_MS", "0"))), for_topic)
    level = min(max(1, copy.queue.queue_id + 1), len(levels))
    return Waiting(copy, copy.store_timestamp + round(levels[level - 1] * 1000), for_topic)


def _digits(text: str) -> str:
    return text if text.isascii() and text.isdigit() else "0"
