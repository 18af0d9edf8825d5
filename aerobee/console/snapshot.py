"""A snapshot of the cluster, shared by all pages: a thousand open tabs cost the brokers as much as one.

A refresh reads the runtime information of each broker, and the state of some topics and groups, those whose data are oldest, so
that a cluster of 5,000 topics is read in slices. While no page is open, the console sends no requests.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aerobee.client import Admin
from aerobee.client.base.results import BrokerInfo, ConsumerProgress, QueueProgress
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX
from aerobee.monitoring.lag_state import LagState, Sample, Verdict, Window, drain_s, extended, judge, worst
from aerobee.system_names import is_hidden_group
from aerobee.words import plural

log = logging.getLogger(__name__)
CALLS_AT_ONCE = 8
ASKED_MAX = 100  # topics, and groups, of one refresh
WATCHED_S = 30.0  # refreshes stop this long after the last request of a page
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
        self.number = 0  # of refreshes
        self.brokers: list[dict[str, Any]] = []
        self.topics: dict[str, TopicLook] = {}
        self.groups: dict[str, GroupLook] = {}
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
            if self._clock.monotonic() - self._asked_s > WATCHED_S:
                self._wake.clear()
                await self._wake.wait()
            try:
                await self.look()
                self.error = ""
            except AerobeeError as error:
                self.error = str(error)
            except Exception as error:
                log.exception("the console failed to read the cluster")
                self.error = f"internal error of the console: {error!r}"
            await self._announce()
            await asyncio.sleep(self._refresh_s)

    async def _announce(self) -> None:
        async with self._changed:
            self.number += 1
            self._changed.notify_all()

    async def look(self) -> None:
        """Refresh: read all brokers, and a slice of topics and groups. The first refresh publishes names before their numbers."""
        now_s = self._clock.monotonic()
        infos = await self._admin.brokers()
        self.brokers = [row for row in await self._each(infos, self._broker) if row is not None]
        if now_s - self._named_s >= NAMES_S:
            await self._names()
            if self._named_s == float("-inf"):
                self.error = ""
                await self._announce()
            self._named_s = now_s
        await self._each(_due(self.topics, self._shown_topics), self._topic)
        await self._each(_due(self.groups, self._shown_groups), self._group)
        self.at_ms = self._clock.now_ms()

    async def _names(self) -> None:
        names = await self._admin.topics()
        self._system = frozenset(await self._admin.system_topics())
        own = [
            name
            for name in names
            if name not in self._system and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]
        self.topics = {name: self.topics.get(name) or TopicLook(name) for name in own}
        groups = {info.name for info in await self._admin.groups() if not is_hidden_group(info.name)}
        self.groups = {name: self.groups.get(name) or GroupLook(name) for name in sorted(groups)}

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
            "put_p99_ms": _number(runtime.get("putLatency99", "")),
            "loop_wait_ms": _number(runtime.get("loopWaitMaxMs", "")),
            "today_in": _number(runtime.get("msgPutTotalTodayNow", "")),
            "boot_ms": _number(runtime.get("bootTimestamp", "")),
        }

    async def _topic(self, look: TopicLook) -> None:
        stats = await self._admin.topic_stats(look.name)
        now_s, end = self._clock.monotonic(), sum(row.max_offset for row in stats)
        if look.looked_s > float("-inf") and now_s > look.looked_s:
            look.rate = max(0, end - look.end) / (now_s - look.looked_s)
        look.queues, look.end, look.looked_s = len(stats), end, now_s
        look.messages = sum(row.max_offset - row.min_offset for row in stats)
        look.last_ms = max((row.last_update_ms for row in stats), default=0)

    async def _group(self, look: GroupLook) -> None:
        progress = await self._admin.consumer_progress(look.name)
        look.members = len({row.client_id for row in progress.queues if row.client_id})
        look.tps, look.looked_s = progress.consume_tps, self._clock.monotonic()
        look.topics = tuple(
            sorted(
                {row.queue.topic for row in progress.queues if not row.queue.topic.startswith(RETRY_PREFIX)}
            )
        )
        look.lag = sum(max(0, row.lag) for row in progress.queues) if progress.queues else None
        self._judge(look, progress)
        look.late_ms = await self._late_ms(progress)

    def _judge(self, look: GroupLook, progress: ConsumerProgress) -> None:
        now_ms = round(self._clock.monotonic() * 1000)
        windows, verdicts = {}, []
        for row in progress.queues:
            key = (row.queue.topic, row.queue.broker_name, row.queue.queue_id)
            sample = Sample(now_ms, max(0, row.consumer_offset), row.broker_offset, 0, look.members > 0)
            windows[key] = extended(look.windows.get(key, ()), sample)
            verdicts.append(judge(windows[key]))
        look.windows = windows
        # Queues with lag determine the state of the group; without lag all queues do.
        judged = sorted(zip(verdicts, progress.queues, strict=True), key=lambda each: -each[1].lag)
        deciding = [verdict for verdict, row in judged if row.lag > 0] or verdicts
        look.state = worst(verdict.state for verdict in deciding)
        worst_of = ((verdict, row) for verdict, row in judged if verdict.state is look.state)
        look.reason = _headline(progress, next(worst_of, None))
        look.drain_s = drain_s(windows.values())

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
            "late": [group_row(each) for each in late],
            "busy": [topic_row(each) for each in busy],
        }


Look = TypeVar("Look", TopicLook, GroupLook)


def _due(looks: Mapping[str, Look], shown: set[str]) -> list[Look]:
    """The next ASKED_MAX items: first those that a page shows without numbers, then the oldest. Empties `shown`."""
    unknown = {name for name in shown if name in looks and looks[name].looked_s == float("-inf")}
    shown.clear()
    return heapq.nsmallest(
        ASKED_MAX, looks.values(), key=lambda each: (each.name not in unknown, each.looked_s)
    )


def topic_row(look: TopicLook) -> dict[str, Any]:
    return {
        "name": look.name,
        "queues": look.queues,
        "messages": look.messages,
        "rate": look.rate,
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
    if not lags:
        return "no lag"
    verdict, row = worst_of
    where = f"{row.queue.topic} at {row.queue.broker_name}, queue {row.queue.queue_id}"
    return f"lag {plural(sum(lags), 'message')} in {plural(len(lags), 'queue')}; {where}: {verdict.reason}"
