"""Sends the rows of one task: many at a time, each until it is stored or the time is over. What an executor runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from aerobee.client.producer.producer import Producer, by_key
from aerobee.errors import AerobeeError, SendFailed
from aerobee.spark.sink_options import SinkOptions
from aerobee.spark.sink_rows import OutgoingRow, SinkError

BATCH_ROWS_MAX = 256  # rows of one request
BATCH_BYTES_MAX = 512 * 1024
PAUSE_S = 0.2


@dataclass(slots=True)
class Sent:
    """What a task did. `duplicate_count`: rows that a broker knew already."""

    row_count: int = 0
    duplicate_count: int = 0


class RowSender:
    """Use inside `async with`. At most `in_flight_max` requests wait for an answer; add() waits for one then."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._producer = Producer(
            options.nameservers, options.group, config=options.producer, client=options.client
        )
        self._requests: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._batches: dict[str, list[OutgoingRow]] = {}
        self._batch_bytes: dict[str, int] = {}
        self.sent = Sent()

    async def __aenter__(self) -> RowSender:
        await self._producer.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self._producer.close()

    async def add(self, rows: Iterable[OutgoingRow]) -> None:
        """Send rows, or put them into a request that is not full yet. Raises SinkError for any row before."""
        for row in rows:
            if not row.is_plain:
                await self._begin([row])
                continue
            topic = row.message.topic
            batch = self._batches.setdefault(topic, [])
            batch.append(row)
            size = self._batch_bytes[topic] = self._batch_bytes.get(topic, 0) + len(row.message.body)
            if len(batch) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
                await self._begin(self._batches.pop(topic))
                del self._batch_bytes[topic]

    async def finish(self) -> Sent:
        """Send what is left and wait for every answer. Raises SinkError."""
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

    async def _begin(self, rows: list[OutgoingRow]) -> None:
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

    async def _send(self, rows: list[OutgoingRow]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.send_timeout_ms / 1000
        while True:
            try:
                await (self._send_one(rows[0]) if len(rows) == 1 else self._send_many(rows))
            except AerobeeError as error:
                if not _may_succeed(error) or loop.time() >= deadline:
                    which = f"row {rows[0].number}" + (f" to {rows[-1].number}" if len(rows) > 1 else "")
                    raise SinkError(
                        f"{which} of the task, for topic {rows[0].message.topic}: {error}"
                    ) from error
                await asyncio.sleep(PAUSE_S)
            else:
                self.sent.row_count += len(rows)
                return

    async def _send_many(self, rows: list[OutgoingRow]) -> None:
        await self._producer.send_batch([row.message for row in rows])

    async def _send_one(self, row: OutgoingRow) -> None:
        if row.sharding_key:
            result = await self._producer.send(row.message, key=row.sharding_key)
        elif row.dedup_key:
            # The same broker as before: only it knows the key.
            result = await self._producer.send(row.message, selector=by_key, key=row.dedup_key)
        else:
            result = await self._producer.send(row.message)
        self.sent.duplicate_count += result.is_duplicate


def _may_succeed(error: AerobeeError) -> bool:
    """Whether the same rows may be stored later. A send that failed at every broker is as its last try was."""
    if isinstance(error, SendFailed):
        return not error.attempts or getattr(error.attempts[-1][1], "retriable", False)
    return error.retriable
