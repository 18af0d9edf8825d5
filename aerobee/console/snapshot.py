"""A snapshot of the cluster, shared by all pages: a thousand open tabs cost the brokers as much as one.

A refresh reads the runtime information of each broker, and the state of some topics and groups, those whose data are oldest, so
that a cluster of 5,000 topics is read in slices. Before the first page is opened the console sends no requests. While no page is
open any more it reads the brokers, and the topics and groups whose history is kept, every IDLE_S, so that charts have no gaps.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aerobee.client import Admin
from aerobee.client.base.results import BrokerInfo, ConsumerProgress, GroupInfo, QueueProgress
from aerobee.clock import Clock
from aerobee.console.health import PROBLEMS_MAX, problems
from aerobee.console.history import CLUSTER, History, Kind
from aerobee.console.rebalances import Rebalances
from aerobee.errors import AerobeeError
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX
from aerobee.monitoring.lag_state import LagState, Sample, Verdict, Window, drain_s, extended, judge, worst
from aerobee.ops.terminal.output import snake_keys
from aerobee.system_names import is_hidden_group
from aerobee.words import plural

log = logging.getLogger(__name__)
CALLS_AT_ONCE = 8
ASKED_MAX = 100  # topics, and groups, of one refresh
WATCHED_S = 30.0  # refreshes become rare this long after the last request of a page
IDLE_S = 15.0  # interval of refreshes while no page is open
IDLE_MAX = 20  # topics, and groups, of one refresh while no page is open
TOP_MAX = 20  # busiest topics, and groups with the highest lag, whose history is kept
ON_PAGE_S = 15.0  # a chart requested within this time is on an open page: its item is read in each refresh
DEAD_LETTERS_S = 30.0  # interval of counting dead-letter messages
DEAD_LETTER_GROUPS_MAX = 100  # groups whose dead-letter messages are counted
# Replication state of Aerobee's brokers: broker/replication/facts.py.
HA_KEYS = ("haRole", "haEpoch", "haReplicas", "haMissing", "haTrouble")
RATE_S = 20.0  # rates of consumption are means over at least this: consumers commit every 5 s
FIRST_S = 10.0
NAMES_S = 10.0  # interval of reading the names of topics and groups
T = TypeVar("T")


@dataclass(slots=True)
class TopicLook:
    """One topic: the sum of its end offsets, and its rate between two refreshes; None until there were two."""

    name: str
    queues: int = 0
    messages: int = 0
    end: int = 0
    rate: float | None = None
    last_ms: int = 0
    looked_s: float = float("-inf")
    out: float | None = None  # messages consumed per second, by all groups that were read


@dataclass(slots=True)
class GroupLook:
    """One group over all its topics."""

    name: str
    lag: int | None = None
    late_ms: int | None = None  # lag time: age of the oldest unconsumed message; None if unknown
    tps: float = 0.0
    members: int = 0
    topics: tuple[str, ...] = ()
    state: LagState = LagState.UNKNOWN
    reason: str = ""
    drain_s: float | None = None
    windows: dict[tuple[str, str, int], Window] = field(default_factory=dict)
    looked_s: float = float("-inf")
    meters: dict[str, Meter] = field(default_factory=dict)  # by topic
    settings: tuple[GroupInfo, ...] = ()  # at each broker


@dataclass(slots=True)
class Meter:
    """Rates of one group in one topic, from the sums of its committed and end offsets over at least RATE_S."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)  # time, committed, end
    lag: int = 0
    consumed: float | None = None
    produced: float | None = None

    def add(self, at_s: float, committed: int, end: int) -> None:
        """Add a reading. An offset that decreased (a reset, a deleted queue) begins the measurement again."""
        self.lag = max(0, end - committed)
        if self.samples and (committed < self.samples[-1][1] or end < self.samples[-1][2]):
            self.samples.clear()
        self.samples.append((at_s, committed, end))
        while len(self.samples) > 2 and at_s - self.samples[1][0] >= RATE_S:
            del self.samples[0]
        first_s, first_committed, first_end = self.samples[0]
        if at_s - first_s >= RATE_S:
            self.consumed = (committed - first_committed) / (at_s - first_s)
            self.produced = (end - first_end) / (at_s - first_s)


class Snapshot:
    """Runs from start() to stop(). `asked()` keeps the refreshes running."""

    def __init__(self, admin: Admin, clock: Clock, refresh_s: float) -> None:
        self._admin = admin
        self._clock = clock
        self._refresh_s = refresh_s
        self._gate = asyncio.Semaphore(CALLS_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._named_s = float("-inf")
        self._system: frozenset[str] = frozenset()
        self._shown_topics: set[str] = set()
        self._shown_groups: set[str] = set()
        self._on_page: dict[
            tuple[Kind, str], float
        ] = {}  # charts of open pages: monotonic time of the last request
        self._readers: dict[str, list[GroupLook]] = {}  # by topic
        self.history = History()
        self.rebalances = Rebalances()
        self.number = 0  # of refreshes
        self.brokers: list[dict[str, Any]] = []
        self.topics: dict[str, TopicLook] = {}
        self.groups: dict[str, GroupLook] = {}
        self.dead_letters: dict[str, int] = {}  # by group, those that are not redriven
        self._dead_letters_s = float("-inf")
        self.error = "the first snapshot of the cluster is in progress"
        self.at_ms = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="console-snapshot")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def asked(self) -> None:
        """Record a request of a page."""
        self._asked_s = self._clock.monotonic()
        self._wake.set()

    def shown_topics(self, names: Iterable[str]) -> None:
        """Record the rows that a page shows: the next refresh reads those without data first."""
        self._shown_topics.update(names)

    def shown_groups(self, names: Iterable[str]) -> None:
        """As shown_topics(), for groups."""
        self._shown_groups.update(names)

    def charted(self, kind: Kind, name: str) -> None:
        """Record that a page shows the charts of an item: its history is kept, and each refresh reads it."""
        if kind in (Kind.TOPIC, Kind.GROUP) and name in (self.topics if kind is Kind.TOPIC else self.groups):
            self.history.keep(kind, name)
            self._on_page[kind, name] = self._clock.monotonic()

    async def next(self, number: int) -> None:
        """Return after the next refresh following number `number`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.number > number)

    async def first(self) -> None:
        """Return after the first refresh, or after FIRST_S, so that the first page is not empty."""
        try:
            async with asyncio.timeout(FIRST_S):
                await self.next(0)
        except TimeoutError:
            return

    async def _run(self) -> None:
        while True:
            is_idle = False
            if self._clock.monotonic() - self._asked_s > WATCHED_S:
                self._wake.clear()
                is_idle = await self._idle()
            try:
                await (self._look_idle() if is_idle else self.look())
                self.error = ""
            except AerobeeError as error:
                self.error = str(error)
            except Exception as error:
                log.exception("the console failed to read the cluster")
                self.error = f"internal error of the console: {error!r}"
            await self._announce()
            await asyncio.sleep(self._refresh_s)

    async def _idle(self) -> bool:
        """Wait for a request of a page. True: there was none for IDLE_S, after at least one page before."""
        try:
            async with asyncio.timeout(IDLE_S if self.number else None):
                await self._wake.wait()
        except TimeoutError:
            return True
        return False

    async def _announce(self) -> None:
        async with self._changed:
            self.number += 1
            self._changed.notify_all()

    async def look(self) -> None:
        """Refresh: read all brokers, and a slice of topics and groups. The first refresh publishes names before their numbers."""
        now_s = self._clock.monotonic()
        await self._look_at_brokers()
        if now_s - self._named_s >= NAMES_S:
            await self._names()
            if self._named_s == float("-inf"):
                self.error = ""
                await self._announce()
            self._named_s = now_s
        on_page = {item: at_s for item, at_s in self._on_page.items() if at_s >= now_s - ON_PAGE_S}
        self._on_page = on_page
        of_kind = {of: {name for kind, name in on_page if kind is of} for of in Kind}
        if now_s - self._dead_letters_s >= DEAD_LETTERS_S:
            self._dead_letters_s = now_s
            await self._count_dead_letters()
        await self._look_at(
            _due(self.topics, self._shown_topics, of_kind[Kind.TOPIC]),
            _due(self.groups, self._shown_groups, of_kind[Kind.GROUP]),
        )

    async def _count_dead_letters(self) -> None:
        """Count the dead-letter messages of each group that are not redriven."""
        names = (await self._admin.dead_letter_groups())[:DEAD_LETTER_GROUPS_MAX]

        async def count(group: str) -> tuple[str, int]:
            return group, sum(each.waiting for each in await self._admin.dead_letter_queues(group))

        self.dead_letters = {each[0]: each[1] for each in await self._each(names, count) if each is not None}

    async def _look_idle(self) -> None:
        """Refresh while no page is open: read what charts need."""
        await self._look_at_brokers()
        topics = [self.topics[name] for name in self.history.kept(Kind.TOPIC) if name in self.topics]
        groups = [self.groups[name] for name in self.history.kept(Kind.GROUP) if name in self.groups]
        await self._look_at(
            heapq.nsmallest(IDLE_MAX, topics, key=lambda each: each.looked_s),
            heapq.nsmallest(IDLE_MAX, groups, key=lambda each: each.looked_s),
        )

    async def _look_at_brokers(self) -> None:
        infos = await self._admin.brokers()
        self.brokers = [row for row in await self._each(infos, self._broker) if row is not None]
        _compare_logs(self.brokers)

    async def _look_at(self, topics: list[TopicLook], groups: list[GroupLook]) -> None:
        await self._each(groups, self._group)
        self._readers = defaultdict(list)
        for group in self.groups.values():
            for topic in group.topics:
                self._readers[topic].append(group)
        await self._each(topics, self._topic)
        self.at_ms = self._clock.now_ms()
        self._record()

    def _record(self) -> None:
        """Record the numbers of the cluster and of its brokers, and keep the history of the busiest topics and groups."""
        at_s, groups = self.at_ms / 1000, list(self.groups.values())
        for row in self.brokers:
            self.history.keep(Kind.BROKER, row["address"])
            self.history.record(Kind.BROKER, row["address"], at_s, _broker_numbers(row))
        for topic in heapq.nlargest(
            TOP_MAX, (each for each in self.topics.values() if each.rate), key=lambda each: each.rate or 0
        ):
            self.history.keep(Kind.TOPIC, topic.name)
        for group in heapq.nlargest(
            TOP_MAX, (each for each in groups if each.lag), key=lambda each: each.lag or 0
        ):
            self.history.keep(Kind.GROUP, group.name)
        numbers = [_broker_numbers(row) for row in self.brokers if not row.get("error")]

        def of_all(metric: str, reduced: Callable[[list[float]], float]) -> float | None:
            known = [value for each in numbers if (value := each[metric]) is not None]
            return reduced(known) if known else None

        sums = {metric: of_all(metric, sum) for metric in ("in", "out", "connections")}
        most = {metric: of_all(metric, max) for metric in ("put_p50", "put_p99", "disk", "behind")}
        lags = [each.lag for each in groups if each.lag is not None]
        late = [each.late_ms for each in groups if each.late_ms is not None]
        of_groups = {"lag": float(sum(lags)) if lags else None, "late": float(max(late)) if late else None}
        self.history.keep(Kind.CLUSTER, CLUSTER)
        self.history.record(Kind.CLUSTER, CLUSTER, at_s, sums | most | of_groups)

    async def _names(self) -> None:
        names = await self._admin.topics()
        self._system = frozenset(await self._admin.system_topics())
        own = [
            name
            for name in names
            if name not in self._system and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]
        self.topics = {name: self.topics.get(name) or TopicLook(name) for name in own}
        groups: dict[str, list[GroupInfo]] = defaultdict(list)
        for info in await self._admin.groups():
            if not is_hidden_group(info.name):
                groups[info.name].append(info)
        self.groups = {name: self.groups.get(name) or GroupLook(name) for name in sorted(groups)}
        for name, look in self.groups.items():
            look.settings = tuple(groups[name])
        self.rebalances.retain(groups)

    async def _each(self, items: Iterable[Any], ask: Callable[[Any], Awaitable[T]]) -> list[T | None]:
        """Call `ask` for all items. A failed item yields None; if all fail, raises the first error."""

        async def one(item: Any) -> T | AerobeeError:
            async with self._gate:
                try:
                    return await ask(item)
                except AerobeeError as error:
                    return error

        found = await asyncio.gather(*map(one, items))
        failures = [each for each in found if isinstance(each, AerobeeError)]
        if failures and len(failures) == len(found):
            raise failures[0]
        return [None if isinstance(each, AerobeeError) else each for each in found]

    async def _broker(self, info: BrokerInfo) -> dict[str, Any]:
        row: dict[str, Any] = {
            "cluster": info.cluster,
            "name": info.broker_name,
            "id": info.broker_id,
            "address": info.address,
            "role": "master" if info.broker_id == 0 else "slave",
        }
        try:
            runtime = await self._admin.broker_runtime(info.address)
        except AerobeeError as error:
            return row | {"error": str(error)}
        return row | {
            "version": runtime.get("brokerVersionDesc", ""),
            "in_tps": _first(runtime.get("putTps", "")),
            "out_tps": _first(runtime.get("getTransferredTps", "")),
            "disk": _number(runtime.get("commitLogDiskRatio", "")),
            "put_p50_ms": _number(runtime.get("putLatency50", "")),
            "put_p99_ms": _number(runtime.get("putLatency99", "")),
            "get_p50_ms": _number(runtime.get("getLatency50", "")),
            "get_p99_ms": _number(runtime.get("getLatency99", "")),
            "connections": _number(runtime.get("connections", "")),
            "log_end": _number(runtime.get("commitLogMaxOffset", "")),
            "behind_bytes": _number(runtime.get("haBehind", "")),
            "ha": snake_keys({key: runtime[key] for key in HA_KEYS if runtime.get(key)}),
            "loop_wait_ms": _number(runtime.get("loopWaitMaxMs", "")),
            "today_in": _number(runtime.get("msgPutTotalTodayNow", "")),
            "boot_ms": _number(runtime.get("bootTimestamp", "")),
        }

    async def _topic(self, look: TopicLook) -> None:
        stats = await self._admin.topic_stats(look.name)
        now_s, end = self._clock.monotonic(), sum(row.max_offset for row in stats)
        if look.looked_s > float("-inf") and now_s > look.looked_s:
            look.rate = max(0, end - look.end) / (now_s - look.looked_s)
            at_s = self._clock.now_ms() / 1000
            self.history.record(
                Kind.TOPIC, look.name, at_s, {"in": look.rate}, at_s - (now_s - look.looked_s)
            )
        readers = self._readers.get(look.name, [])
        meters = [meter for each in readers if (meter := each.meters.get(look.name)) is not None]
        consumed = [each.consumed for each in meters if each.consumed is not None]
        look.out = sum(consumed) if consumed else None
        late = [each.late_ms for each in readers if each.late_ms is not None]
        self.history.record(
            Kind.TOPIC,
            look.name,
            self._clock.now_ms() / 1000,
            {
                "out": look.out,
                "lag": float(sum(each.lag for each in meters)) if meters else None,
                "late": float(max(late)) if late else None,
            },
        )
        look.queues, look.end, look.looked_s = len(stats), end, now_s
        look.messages = sum(row.max_offset - row.min_offset for row in stats)
        look.last_ms = max((row.last_update_ms for row in stats), default=0)

    async def _group(self, look: GroupLook) -> None:
        progress = await self._admin.consumer_progress(look.name)
        look.members = len(progress.members)
        look.tps, look.looked_s = progress.consume_tps, self._clock.monotonic()
        look.topics = tuple(
            sorted(
                {row.queue.topic for row in progress.queues if not row.queue.topic.startswith(RETRY_PREFIX)}
            )
        )
        look.lag = sum(max(0, row.lag) for row in progress.queues) if progress.queues else None
        owners = {
            f"{row.queue.topic} {row.queue.broker_name}/{row.queue.queue_id}": row.client_id
            for row in progress.queues
        }
        self.rebalances.record(look.name, self._clock.now_ms() / 1000, progress.members, owners)
        self._sample(look, progress)
        self._judge(look, progress, await self._locks(look))
        look.late_ms = await self._late_ms(progress)
        self._measure(look, progress)

    def _measure(self, look: GroupLook, progress: ConsumerProgress) -> None:
        """Update the rates of a group in each topic, and record those of the group."""
        now_s = self._clock.monotonic()
        sums: dict[str, tuple[int, int]] = {}
        for row in progress.queues:
            committed, end = sums.get(row.queue.topic, (0, 0))
            sums[row.queue.topic] = committed + max(0, row.consumer_offset), end + row.broker_offset
        look.meters = {topic: look.meters.get(topic) or Meter() for topic in sums}
        for topic, (committed, end) in sums.items():
            look.meters[topic].add(now_s, committed, end)
        consumed = [each.consumed for each in look.meters.values() if each.consumed is not None]
        produced = [each.produced for each in look.meters.values() if each.produced is not None]
        self.history.record(
            Kind.GROUP,
            look.name,
            self._clock.now_ms() / 1000,
            {
                "in": sum(produced) if produced else None,
                "out": sum(consumed) if consumed else None,
                "lag": look.lag,
                "late": look.late_ms,
            },
        )

    def _sample(self, look: GroupLook, progress: ConsumerProgress) -> None:
        """Add the offsets of each queue to its window."""
        now_ms = round(self._clock.monotonic() * 1000)
        windows = {}
        for row in progress.queues:
            key = (row.queue.topic, row.queue.broker_name, row.queue.queue_id)
            sample = Sample(now_ms, max(0, row.consumer_offset), row.broker_offset, 0, look.members > 0)
            windows[key] = extended(look.windows.get(key, ()), sample)
        look.windows = windows

    async def _locks(self, look: GroupLook) -> dict[tuple[str, str, int], int]:
        """Duration in ms for which each queue has been locked. Requested only for a group with an offset that does not advance."""
        if not any(judge(window).state is LagState.STALL for window in look.windows.values()):
            return {}
        now_ms = self._clock.now_ms()
        return {
            (lock.queue.topic, lock.queue.broker_name, lock.queue.queue_id): max(0, now_ms - lock.since_ms)
            for lock in await self._admin.queue_locks(look.name) or ()
        }

    def _judge(
        self, look: GroupLook, progress: ConsumerProgress, locks: Mapping[tuple[str, str, int], int]
    ) -> None:
        differ = {each.topic for each in progress.conflicts}
        verdicts = [
            judge(window, lock_held_ms=locks.get(key), subscriptions_differ=key[0] in differ)
            for key, window in look.windows.items()
        ]
        # Queues with lag, and those of members with different subscriptions, determine the state of the group; without them all do.
        judged = sorted(zip(verdicts, progress.queues, strict=True), key=lambda each: -each[1].lag)
        deciding = [
            verdict for verdict, row in judged if row.lag > 0 or verdict.state is LagState.MISMATCH
        ] or verdicts
        look.state = worst(verdict.state for verdict in deciding)
        worst_of = ((verdict, row) for verdict, row in judged if verdict.state is look.state)
        look.reason = _headline(progress, next(worst_of, None))
        look.drain_s = drain_s(look.windows.values())

    async def _late_ms(self, progress: ConsumerProgress) -> int | None:
        """Lag time: the age of the oldest unconsumed message, read from its record in the queues with the oldest progress."""
        behind = sorted(
            (row for row in progress.queues if row.lag > 0), key=lambda row: row.last_timestamp_ms
        )[:4]
        if not behind:
            return 0 if progress.queues else None
        ages = []
        for row in behind:
            try:
                message = await self._admin.message_at(row.queue, max(0, row.consumer_offset))
            except AerobeeError:
                continue
            ages.append(max(0, self._clock.now_ms() - message.store_timestamp))
        return max(ages, default=None)

    # --- as JSON

    def overview(self) -> dict[str, Any]:
        """Data of the overview page and of the stream of events."""
        groups = list(self.groups.values())
        late = sorted((each for each in groups if each.lag), key=lambda each: -(each.late_ms or 0))[:10]
        busy = sorted(self.topics.values(), key=lambda each: -(each.rate or 0))[:10]
        bad = [each for each in groups if each.state not in (LagState.OK, LagState.UNKNOWN)]
        return {
            "number": self.number,
            "at_ms": self.at_ms,
            "error": self.error,
            "brokers": self.brokers,
            "topic_count": len(self.topics),
            "group_count": len(groups),
            "lag": sum(each.lag or 0 for each in groups),
            "in_tps": sum(row.get("in_tps") or 0 for row in self.brokers),
            "out_tps": sum(row.get("out_tps") or 0 for row in self.brokers),
            "not_ok": [group_row(each) for each in bad[:20]],
            "problems": problems(self.brokers, map(group_row, bad), self.dead_letters)[:PROBLEMS_MAX],
            "dead_letters": sum(self.dead_letters.values()),
            "late": [group_row(each) for each in late],
            "busy": [topic_row(each) for each in busy],
        }


Look = TypeVar("Look", TopicLook, GroupLook)


def _due(looks: Mapping[str, Look], shown: set[str], charted: set[str]) -> list[Look]:
    """The next ASKED_MAX items: first those with charts on a page, and those that a page shows without numbers, then the oldest.

    Empties `shown`."""
    first = charted | {name for name in shown if name in looks and looks[name].looked_s == float("-inf")}
    shown.clear()
    return heapq.nsmallest(
        ASKED_MAX, looks.values(), key=lambda each: (each.name not in first, each.looked_s)
    )


def _compare_logs(rows: Iterable[dict[str, Any]]) -> None:
    """Set how many bytes of its master's log each slave lacks, where the slave does not report it."""
    ends = {row["name"]: row.get("log_end") for row in rows if row["role"] == "master"}
    for row in rows:
        end, own = ends.get(row["name"]), row.get("log_end")
        if row["role"] == "slave" and row.get("behind_bytes") is None and end is not None and own is not None:
            row["behind_bytes"] = max(0.0, end - own)


def _broker_numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers of a broker for its charts."""
    disk = row.get("disk")
    return {
        "in": row.get("in_tps"),
        "out": row.get("out_tps"),
        "put_p50": row.get("put_p50_ms"),
        "put_p99": row.get("put_p99_ms"),
        "get_p50": row.get("get_p50_ms"),
        "get_p99": row.get("get_p99_ms"),
        "disk": None if disk is None or disk < 0 else 100 * disk,
        "connections": row.get("connections"),
        "behind": row.get("behind_bytes"),
    }


def topic_row(look: TopicLook) -> dict[str, Any]:
    return {
        "name": look.name,
        "queues": look.queues,
        "messages": look.messages,
        "rate": look.rate,
        "out": look.out,
        "last_ms": look.last_ms,
        "is_known": look.looked_s > float("-inf"),
    }


def group_row(look: GroupLook) -> dict[str, Any]:
    return {
        "name": look.name,
        "lag": look.lag,
        "late_ms": look.late_ms,
        "tps": look.tps,
        "members": look.members,
        "topics": look.topics,
        "state": look.state.value,
        "reason": look.reason,
        "drain_s": look.drain_s,
        "is_known": look.looked_s > float("-inf"),
    }


def _first(text: str) -> float | None:
    parts = text.split()
    return _number(parts[0]) if parts else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _headline(progress: ConsumerProgress, worst_of: tuple[Verdict, QueueProgress] | None) -> str:
    """The lag of the group, the sum over its queues, and why its state is what it is: the verdict on its worst queue."""
    if worst_of is None:
        return "it never consumed"
    lags = [row.lag for row in progress.queues if row.lag > 0]
    verdict, row = worst_of
    if not lags and verdict.state is LagState.MISMATCH:
        return f"{row.queue.topic}: {verdict.reason}"
    if not lags:
        return "no lag"
    where = f"{row.queue.topic} at {row.queue.broker_name}, queue {row.queue.queue_id}"
    return f"lag {plural(sum(lags), 'message')} in {plural(len(lags), 'queue')}; {where}: {verdict.reason}"
