"""The message browser: a page of a topic's messages, from the newest back or from an offset or a time on, with a filter.

A request reads a window of each queue, at most SCAN_MAX messages together, and returns up to PAGE_MAX of them with a cursor, from
which the next request continues: no message between two pages is left out. The broker evaluates tags and SQL92 expressions; the
console itself compares one property, and text in the body, so that these work at brokers without enablePropertyFilter as well.
No request uses a consumer group or changes an offset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee.client import Admin, ReceivedMessage, Sql
from aerobee.client.base.results import QueueStats
from aerobee.console.masks import Masks
from aerobee.errors import AerobeeError, UsageError
from aerobee.message import MessageQueue, check_topic_name
from aerobee.words import plural

PAGE_MAX = 50  # messages of one reply
SCAN_MAX = 2_000  # messages that one request reads, if there is a filter
QUEUES_MAX = 64  # queues that one request reads: those with the newest messages
KEPT_BYTES_MAX = (
    64 * 1024 * 1024
)  # messages that one request keeps, in equal shares of its queues; each queue keeps one at least
READS_AT_ONCE = 8  # requests to brokers, of all pages together
CURSOR_CHARS_MAX = 6_000  # a longer one would not fit into the next request
ORDERS = ("newest", "oldest", "offset", "time")
FILTERS = ("", "tag", "sql", "property", "text")

Wanted = Callable[[ReceivedMessage], bool]


@dataclass(frozen=True, slots=True)
class Search:
    """What to read. `queue` is "" for all queues, else broker/id; `start` is an offset, or a time in ms; `filter_by` one of FILTERS."""

    topic: str
    queue: str = ""
    order: str = "newest"
    start: int = 0
    filter_by: str = ""
    value: str = ""
    cursor: str = ""

    def check(self) -> None:
        """Raises UsageError."""
        check_topic_name(self.topic)
        if self.order not in ORDERS:
            raise UsageError(f"by is {self.order!r}, must be one of {', '.join(ORDERS)}")
        if self.filter_by not in FILTERS:
            raise UsageError(f"filter is {self.filter_by!r}, must be one of {', '.join(FILTERS[1:])}")
        if self.filter_by and not self.value.strip():
            raise UsageError(f"the filter by {self.filter_by} has no value")
        if self.order == "offset" and not self.queue:
            raise UsageError("an offset counts the messages of one queue: choose the queue")

    @property
    def is_backward(self) -> bool:
        return self.order == "newest"

    def expression(self) -> str:
        """The filter that the broker evaluates."""
        return {"tag": self.value, "sql": Sql(self.value)}.get(self.filter_by, "*")

    def wanted(self) -> Wanted:
        """The filter that the console evaluates."""
        if self.filter_by == "text":
            text = self.value.encode()
            return lambda message: text in message.body_or_stored()[0]
        if self.filter_by == "property":
            name, has_value, value = self.value.partition("=")
            if has_value:
                return lambda message: message.properties.get(name.strip()) == value.strip()
            return lambda message: name.strip() in message.properties
        return lambda message: True


@dataclass(slots=True)
class _Window:
    """Offsets of one queue, `begin` to before `end`, and the messages found there."""

    row: QueueStats
    begin: int
    end: int
    found: Sequence[ReceivedMessage] = ()
    failure: AerobeeError | None = None
    is_cut: bool = False  # it has more messages than were kept, because of their size


class Browser:
    """Reads pages of messages."""

    def __init__(self, admin: Admin, masks: Masks | None = None) -> None:
        self._admin = admin
        self._masks = masks or Masks()
        self._gate = asyncio.Semaphore(READS_AT_ONCE)

    async def page(self, search: Search, page_max: int = PAGE_MAX) -> dict[str, Any]:
        """At most `page_max` `messages` in the order of the search, `cursor` to continue ("": at the end), `scanned`, `note`, and the `queues` of the topic.

        Raises UsageError, and the failure of a broker if no queue can be read.
        """
        search.check()
        if search.filter_by == "text" and self._masks.hides(search.topic):
            raise UsageError(f"fields of {search.topic} are hidden: its bodies cannot be searched")
        stats = await self._admin.topic_stats(search.topic)
        rows = _chosen(stats, search.queue)
        left_out = max(0, len(rows) - QUEUES_MAX)
        rows = sorted(rows, key=lambda row: (-row.last_update_ms, row.queue))[:QUEUES_MAX]
        windows = await self._windows(search, rows)
        share = KEPT_BYTES_MAX // max(1, len(windows))
        await asyncio.gather(*(self._read(window, search, share) for window in windows))
        failures = [window.failure for window in windows if window.failure is not None]
        if failures and len(failures) == len(windows):
            raise failures[0]
        messages, positions = _merged(windows, min(page_max, PAGE_MAX), is_backward=search.is_backward)
        cursor = ";".join(f"{name(queue)}:{offset}" for queue, offset in positions.items())
        notes = [f"one queue could not be read: {failure}" for failure in failures]
        if left_out:
            notes.append(f"{plural(left_out, 'queue')} with older messages left out: choose a queue")
        if len(cursor) > CURSOR_CHARS_MAX:
            cursor = ""
            notes.append("the topic has too many queues to continue: choose a queue")
        return {
            "messages": messages,
            "cursor": cursor,
            "scanned": sum(window.end - window.begin for window in windows),
            "note": "; ".join(notes),
            "queues": [
                {"name": name(row.queue), "min_offset": row.min_offset, "max_offset": row.max_offset}
                for row in stats
            ],
        }

    async def _windows(self, search: Search, rows: Sequence[QueueStats]) -> list[_Window]:
        """The part of each queue that this request reads."""
        at = _parsed_cursor(search.cursor)
        size = max(PAGE_MAX, SCAN_MAX // max(1, len(rows))) if search.filter_by else PAGE_MAX
        windows = []
        for row in rows:
            start = at.get(name(row.queue))
            if search.cursor and start is None:
                continue  # the queue has been read to its end
            if start is None:
                start = row.max_offset if search.is_backward else await self._start(search, row)
            start = min(max(start, row.min_offset), row.max_offset)
            begin = max(row.min_offset, start - size) if search.is_backward else start
            end = start if search.is_backward else min(row.max_offset, start + size)
            if begin < end:
                windows.append(_Window(row, begin, end))
        return windows

    async def _start(self, search: Search, row: QueueStats) -> int:
        if search.order == "time":
            return await self._admin.offset_at(row.queue, search.start)
        return search.start if search.order == "offset" else row.min_offset

    async def _read(self, window: _Window, search: Search, bytes_max: int) -> None:
        """Fill `found`, or `failure`. The window becomes smaller where it has more than a page, or more than `bytes_max` bytes."""
        wanted, expression = search.wanted(), search.expression()
        kept = _Kept(window, bytes_max, is_backward=search.is_backward)
        offset = window.begin
        try:
            while offset < window.end:
                async with self._gate:
                    messages, offset = await self._admin.messages_from(
                        window.row.queue, offset, expression=expression
                    )
                for each in messages:
                    if each.queue_offset < window.end and wanted(each):
                        kept.add(each, is_inflated=search.filter_by == "text")
        except AerobeeError as error:
            window.failure = error
            return
        window.found = [message for message, _ in kept.messages]


class _Kept:
    """Messages of a window while it is read, from its begin on. Backward the newest are kept, else the oldest."""

    def __init__(self, window: _Window, bytes_max: int, *, is_backward: bool) -> None:
        self.messages: deque[tuple[ReceivedMessage, int]] = deque()
        self._window = window
        self._bytes_max = bytes_max
        self._is_backward = is_backward
        self._bytes = 0

    def add(self, message: ReceivedMessage, *, is_inflated: bool) -> None:
        size = message.size_bytes + (len(message.body_or_stored()[0]) if is_inflated else 0)
        self.messages.append((message, size))
        self._bytes += size
        if not self._is_backward:
            if self._bytes >= self._bytes_max or len(self.messages) >= PAGE_MAX:
                self._window.is_cut |= self._bytes >= self._bytes_max
                self._window.end = message.queue_offset + 1
            return
        while len(self.messages) > 1 and (self._bytes > self._bytes_max or len(self.messages) > PAGE_MAX):
            self._window.is_cut |= self._bytes > self._bytes_max
            dropped, size = self.messages.popleft()
            self._bytes -= size
            self._window.begin = dropped.queue_offset + 1


def name(queue: MessageQueue) -> str:
    """broker/id, as the command line writes a queue."""
    return f"{queue.broker_name}/{queue.queue_id}"


def _chosen(stats: Iterable[QueueStats], queue: str) -> list[QueueStats]:
    found = [row for row in stats if queue in ("", name(row.queue))]
    if queue and not found:
        raise UsageError(f"the topic has no queue {queue!r}: write broker/id")
    return found


def _parsed_cursor(text: str) -> dict[str, int]:
    """Name of a queue -> offset. Raises UsageError."""
    found = {}
    for part in text.split(";") if text else ():
        queue, _, offset = part.rpartition(":")
        if not queue or not offset.isdecimal() or len(offset) > 18:
            raise UsageError(f"cursor has {part[:80]!r}, not broker/id:offset")
        found[queue] = int(offset)
    return found


def _merged(
    windows: Iterable[_Window], page_max: int, *, is_backward: bool
) -> tuple[list[ReceivedMessage], dict[MessageQueue, int]]:
    """The first `page_max` messages of all windows in the order of the search, and where each queue continues, if it does."""

    def by_time(message: ReceivedMessage) -> tuple[int, MessageQueue, int]:
        return message.store_timestamp, message.queue, message.queue_offset

    windows = list(windows)
    found = sorted((each for window in windows for each in window.found), key=by_time, reverse=is_backward)
    # What lies behind the last message of a window that was cut waits for the rest of that window.
    last = [window.found[0 if is_backward else -1] for window in windows if window.is_cut and window.found]
    count = min(page_max, *(found.index(each) + 1 for each in last)) if last else page_max
    shown, rest = found[:count], found[count:]
    positions = {}
    for window in windows:
        queue = window.row.queue
        left = [each.queue_offset for each in rest if each.queue == queue]
        if window.failure is not None:  # the next request tries it again
            positions[queue] = window.end if is_backward else window.begin
        elif is_backward:
            position = max(left) + 1 if left else window.begin
            if position > window.row.min_offset:
                positions[queue] = position
        else:
            position = min(left) if left else window.end
            if position < window.row.max_offset:
                positions[queue] = position
    return shown, positions
