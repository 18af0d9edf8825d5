"""Sends the rows of one task concurrently, each until it is stored or times out. Runs in an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from aerobee.client.producer.message_group import by_message_group
from aerobee.client.producer.producer import Producer
from aerobee.errors import AerobeeError
from aerobee.spark.entry_codec import BatchLayout, LaidOutBatch
from aerobee.spark.sink_options import SinkOptions
from aerobee.spark.sink_rows import OutgoingRow, SinkError

BATCH_ROWS_MAX = 1024  # maximum number of rows of one request
BATCH_BYTES_MAX = 512 * 1024
WAITING_BYTES_MAX = 16 * 1024 * 1024  # bound on the bytes of laid-out requests without a reply
PAUSE_S = 0.2


@dataclass(slots=True)
class Sent:
    """Result of a task. `duplicate_count`: rows whose key a broker had already."""

    row_count: int = 0
    duplicate_count: int = 0


class RowSender:
    """Use inside `async with`. At most `in_flight_max` requests are in flight, and laid-out requests up to
    WAITING_BYTES_MAX plus one; above that add() and add_laid_out() wait for a reply.
    """

    layout: BatchLayout  # set on entry

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._producer = Producer(
            options.nameservers, options.group, config=options.producer, client=options.client
        )
        self._requests: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self._failure: BaseException | None = None
        self._batches: dict[str, list[OutgoingRow]] = {}
        self._batch_bytes: dict[str, int] = {}
        self.sent = Sent()

    async def __aenter__(self) -> RowSender:
        producer = self._producer
        await producer.start()
        config = self._options.producer
        self.layout = BatchLayout(
            producer.unique_ids,
            producer.now_ms,
            rows_max=BATCH_ROWS_MAX,
            bytes_max=min(BATCH_BYTES_MAX, config.batch_bytes_max),
            # Larger rows are sent as single messages: the broker's maxMessageSize applies to each, and they
            # may be compressed.
            body_bytes_max=min(BATCH_BYTES_MAX, config.body_bytes_max),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self._producer.close()

    async def add(self, rows: Iterable[OutgoingRow]) -> None:
        """Send rows, or add them to a request that is not full yet. Raises SinkError for any earlier row."""
        for row in rows:
            if not row.is_plain or len(row.message.body) >= BATCH_BYTES_MAX:
                await self._begin([row])
                continue
            topic = row.message.topic
            batch = self._batches.setdefault(topic, [])
            batch.append(row)
            size = self._batch_bytes[topic] = self._batch_bytes.get(topic, 0) + len(row.message.body)
            if len(batch) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
                await self._begin(self._batches.pop(topic))
                del self._batch_bytes[topic]

    async def add_laid_out(self, rows: LaidOutBatch) -> None:
        """Send rows in one request. Raises SinkError for any earlier row."""
        while self._waiting_bytes >= WAITING_BYTES_MAX and self._requests:
            await asyncio.wait(self._requests, return_when=asyncio.FIRST_COMPLETED)
        self._waiting_bytes += len(rows.body)
        try:
            await self._begin(rows)
        except BaseException:
            self._waiting_bytes -= len(rows.body)
            raise

    async def finish(self) -> Sent:
        """Send the remaining rows and wait for every reply. Raises SinkError."""
        for batch in self._batches.values():
            await self._begin(batch)
        self._batches.clear()
        while self._requests:
            await asyncio.wait(self._requests)
        self._raise_failure()
        return self.sent

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _begin(self, rows: list[OutgoingRow] | LaidOutBatch) -> None:
        while len(self._requests) >= self._options.in_flight_max:
            await asyncio.wait(self._requests, return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()
        request = asyncio.create_task(self._send(rows))
        self._requests.add(request)
        request.add_done_callback(self._ended)

    def _ended(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        if not request.cancelled() and self._failure is None:
            self._failure = request.exception()

    async def _send(self, rows: list[OutgoingRow] | LaidOutBatch) -> None:
        try:
            if isinstance(rows, LaidOutBatch):
                await self._stored(rows.topic, rows.first, rows.last, partial(self._send_entries, rows))
                self.sent.row_count += rows.row_count
            else:
                call = partial(self._send_one, rows[0]) if len(rows) == 1 else partial(self._send_many, rows)
                await self._stored(rows[0].message.topic, rows[0].number, rows[-1].number, call)
                self.sent.row_count += len(rows)
        finally:
            if isinstance(rows, LaidOutBatch):
                self._waiting_bytes -= len(rows.body)

    async def _stored(self, topic: str, first: int, last: int, call: Callable[[], Awaitable[None]]) -> None:
        """Retry `call` until it succeeds. Raises SinkError when it fails permanently, or at the time-out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.send_timeout_ms / 1000
        while True:
            try:
                await call()
            except AerobeeError as error:
                if not error.retriable or loop.time() >= deadline:
                    which = f"row {first}" + (f" to {last}" if last > first else "")
                    raise SinkError(f"{which} of the task, for topic {topic}: {error}") from error
                await asyncio.sleep(PAUSE_S)
            else:
                return

    async def _send_entries(self, rows: LaidOutBatch) -> None:
        await self._producer.send_entries(rows.topic, rows.body)

    async def _send_many(self, rows: list[OutgoingRow]) -> None:
        await self._producer.send_batch([row.message for row in rows])

    async def _send_one(self, row: OutgoingRow) -> None:
        if row.message_group:
            result = await self._producer.send(row.message, message_group=row.message_group)
        elif row.dedup_key:
            # The same broker as in the first try: only this broker has the key.
            result = await self._producer.send(
                row.message, selector=by_message_group, message_group=row.dedup_key
            )
        else:
            result = await self._producer.send(row.message)
        self.sent.duplicate_count += result.is_duplicate
