"""Plans the leaders of a static topic's logical queues: creation, growth, moves, and completion of interrupted changes.
Core.

A change is written to one broker after the other, so it can be interrupted. The written part suffices to complete it:
of two brokers that claim to lead a queue, the one with the later epoch does. A queue without a leader was never
created, or its broker is down with its messages: the other brokers' data cannot distinguish the cases, so the queue is
assigned to another broker only with `gives_lost`.

Source: TopicQueueMappingUtils, MQAdminUtils.remappingStaticTopic (RocketMQ), whose mappings these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from aerobee.errors import UsageError
from aerobee.remoting.body.queue_mapping import UNDECIDED, Items, QueueMapping, QueueMappingItem
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.words import plural

BLOCK = 10_000  # logical offsets: a part begins at a multiple of it, well after the end of the previous part
EPOCH_STEP_MS = 1_000


@dataclass(frozen=True, slots=True)
class StaticPart:
    """One broker's part of the topic. `mapping` None: at this broker the topic is not static."""

    config: TopicConfig
    mapping: QueueMapping | None


@dataclass(frozen=True, slots=True)
class StaticTopic:
    """The combined mappings of all brokers. `queues`: logical queue -> its items at its leader."""

    topic: str
    epoch: int
    total: int
    queues: Mapping[int, Items]
    parts: Mapping[str, StaticPart]

    @property
    def leaders(self) -> dict[int, str]:
        """Logical queue -> the broker that accepts its messages."""
        return {queue_id: items[-1].broker_name for queue_id, items in sorted(self.queues.items())}

    @property
    def undecided(self) -> dict[int, Items]:
        """Queues that have moved and whose newest part has no logical offset yet."""
        return {n: items for n, items in self.queues.items() if len(items) > 1 and not items[-1].is_decided}

    @property
    def is_whole(self) -> bool:
        """Whether every broker has the newest epoch, and every queue a leader and an offset: no change was interrupted."""
        mappings = [part.mapping for part in self.parts.values() if part.mapping is not None]
        return (
            all((each.epoch, each.total_queues) == (self.epoch, self.total) for each in mappings)
            and set(self.queues) == set(range(self.total))
            and not self.undecided
        )

    @property
    def leaderless(self) -> tuple[int, ...]:
        """Queues that a broker's mapping contains but no broker leads."""
        return tuple(queue_id for queue_id in range(self.total) if queue_id not in self.queues)


def gathered(topic: str, parts: Mapping[str, StaticPart]) -> StaticTopic:
    """Combine the brokers' mappings, by broker name. Raises UsageError for a topic that cannot be changed safely."""
    queues: dict[int, Items] = {}
    mappings: list[QueueMapping] = []
    for name, part in parts.items():
        mapping = part.mapping
        if mapping is None:
            raise UsageError(
                f"{topic} is an ordinary topic at {name}: only static topics have logical queues (make one under another name)"
            )
        if mapping.broker_name != name or mapping.topic != topic or mapping.dirty:
            raise UsageError(
                f"what {name} has of {topic} belongs to another broker or topic: it names broker"
                f" {mapping.broker_name}, topic {mapping.topic}"
                f"{', and is marked as dirty' if mapping.dirty else ''}"
            )
        mappings.append(mapping)
    mappings.sort(key=lambda mapping: (-mapping.epoch, mapping.broker_name))
    for mapping in mappings:
        for queue_id, items in mapping.hosted.items():
            if items and items[-1].broker_name == mapping.broker_name:
                queues.setdefault(queue_id, items)
    used: dict[tuple[str, int], int] = {}
    for queue_id, items in queues.items():
        for item in items:
            other = used.setdefault((item.broker_name, item.queue_id), queue_id)
            if other != queue_id:
                raise UsageError(
                    f"logical queues {other} and {queue_id} of {topic} share queue {item.queue_id} of {item.broker_name}"
                )
    epoch = max((mapping.epoch for mapping in mappings), default=0)
    total = max((mapping.total_queues for mapping in mappings), default=0)
    return StaticTopic(topic, epoch, total, queues, dict(parts))


def grown(
    now: StaticTopic, total: int, brokers: Collection[str], now_ms: int, *, gives_lost: bool = False
) -> StaticTopic:
    """The topic with `total` logical queues: missing queues go to the brokers that lead the fewest.

    `gives_lost`: queues without a leader do too, from offset 0 on; without it they raise UsageError. Also raises
    UsageError for a queue whose leader is down but named by a previous leader.
    """
    _check_leaderless(now, gives_lost)
    if not brokers:
        raise UsageError("name a broker, or a cluster that has some")
    if total < now.total:
        raise UsageError(
            f"{now.topic} has {plural(now.total, 'logical queue')}, and their number never becomes smaller"
        )
    counts = dict.fromkeys(sorted(brokers), 0)
    for leader in now.leaders.values():
        if leader in counts:
            counts[leader] += 1
    change = _Change(now, total, now_ms)
    for queue_id in range(total):
        if queue_id not in now.queues:
            name = min(counts, key=lambda each: (counts[each], each))
            counts[name] += 1
            change.put(queue_id, name, QueueMappingItem(0, change.next_queue(name), name, 0))
    return change.done()


def _check_leaderless(now: StaticTopic, gives_lost: bool) -> None:
    for queue_id in now.leaderless:
        pasts = [
            part.mapping.hosted.get(queue_id, ()) for part in now.parts.values() if part.mapping is not None
        ]
        if items := max(pasts, key=len):
            raise UsageError(
                f"{items[-1].broker_name} leads logical queue {queue_id} of {now.topic} and is away: start it, and try again"
            )
    if now.leaderless and not gives_lost:
        raise UsageError(
            f"{plural(len(now.leaderless), 'logical queue')} of {now.topic} have no leader ({', '.join(map(str, now.leaderless))}): start "
            f"the broker that has them, and retry. If there is none, or it will not come back, gives_lost (--give-lost) assigns them to "
            f"other brokers, from offset 0 on; messages of a broker that comes back afterwards are then inaccessible"
        )


def moved(now: StaticTopic, brokers: Collection[str], now_ms: int) -> StaticTopic:
    """The topic with its queues at these brokers only, moving as few as possible. Raises UsageError."""
    if not brokers:
        raise UsageError("name a broker, or a cluster that has some")
    if not now.is_whole:
        raise UsageError(f"an earlier change of {now.topic} was interrupted: complete it first")
    led = Counter(now.leaders.values())
    share, rest = divmod(now.total, len(brokers))
    most_first = sorted(brokers, key=lambda name: (-led[name], name))
    left = {name: share + (rank < rest) for rank, name in enumerate(most_first)}
    waiting = []
    for queue_id, leader in now.leaders.items():
        if left.get(leader, 0):
            left[leader] -= 1
        else:
            waiting.append(queue_id)
    change = _Change(now, now.total, now_ms)
    for name in sorted(left):
        for _ in range(left[name]):
            queue_id = waiting.pop(0)
            last = now.queues[queue_id][-1]
            change.put(
                queue_id, name, QueueMappingItem(last.gen + 1, change.next_queue(name), name, UNDECIDED)
            )
    return change.done()


def settled(
    now: StaticTopic, brokers: Collection[str], now_ms: int, *, gives_lost: bool = False
) -> StaticTopic:
    """The target of an interrupted change. Queues without a leader: as in grown()."""
    return grown(now, now.total, brokers, now_ms, gives_lost=gives_lost)


def decided(now: StaticTopic, ends: Mapping[tuple[str, int], int]) -> StaticTopic:
    """The topic with a logical offset for each part that has none. `ends`: (broker, queue) -> max offset of the
    previous part.

    Raises UsageError for a part whose end is missing in `ends`.
    """
    change = _Change(now, now.total, 0, epoch=now.epoch)
    for queue_id, items in now.undecided.items():
        before, last = items[-2], items[-1]
        end = ends.get((before.broker_name, before.queue_id))
        if end is None:
            raise UsageError(
                f"{before.broker_name} did not return the end of its queue {before.queue_id} of {now.topic}"
            )
        change.replace(queue_id, (*items[:-1], replace(last, logic_offset=block_after(before.logical(end)))))
    return change.done()


def block_after(offset: int) -> int:
    """A multiple of BLOCK with half a block of space behind `offset` (TopicQueueMappingUtils.blockSeqRoundUp)."""
    blocks, rest = divmod(offset, BLOCK)
    return (blocks + (1 if rest < BLOCK // 2 else 2)) * BLOCK


class _Change:
    """Mappings under construction."""

    def __init__(self, now: StaticTopic, total: int, now_ms: int, *, epoch: int = 0) -> None:
        self._now = now
        self._total = total
        self._epoch = epoch or max(now.epoch + EPOCH_STEP_MS, now_ms)
        self._configs = {name: part.config for name, part in now.parts.items()}
        self._queues = dict(now.queues)
        self._hosted = {
            name: dict(part.mapping.hosted) if part.mapping is not None else {}
            for name, part in now.parts.items()
        }

    def next_queue(self, broker: str) -> int:
        """Add a new physical queue of this broker."""
        config = self._configs.get(broker, TopicConfig(self._now.topic, 0, 0))
        number = config.write_queue_nums
        self._configs[broker] = replace(
            config, write_queue_nums=number + 1, read_queue_nums=max(config.read_queue_nums, number) + 1
        )
        self._hosted.setdefault(broker, {})
        return number

    def put(self, queue_id: int, broker: str, item: QueueMappingItem) -> None:
        """The queue continues at this broker."""
        self.replace(queue_id, (*self._queues.get(queue_id, ()), item))

    def replace(self, queue_id: int, items: Items) -> None:
        self._queues[queue_id] = items

    def done(self) -> StaticTopic:
        """The current leader of a queue and its previous leader store the same items of it."""
        for queue_id, items in self._queues.items():
            for item in items[-2:]:
                hosted = self._hosted.get(item.broker_name)
                if hosted is None:
                    continue  # a broker that left after it had led the queue
                known = hosted.get(queue_id)
                if items is not self._now.queues.get(queue_id) or not known or known[-1].gen < items[-1].gen:
                    hosted[queue_id] = items
        now = self._now
        parts = {}
        for name, hosted in self._hosted.items():
            mapping = QueueMapping(now.topic, self._total, name, self._epoch, hosted=hosted)
            parts[name] = StaticPart(self._configs[name], mapping)
        return StaticTopic(now.topic, self._epoch, self._total, self._queues, parts)
