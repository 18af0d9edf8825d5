"""Sends the rows of the outbox into their topics, and deletes them.

    claim shards -> read their rows by id -> send, the rows of one key one after the other -> delete what is stored

A relay that dies between send and delete leaves rows that are sent again, with the same DEDUP_KEY and to the same queue:
a broker whose dedupWindowMillis is longer than the outage stores them once. Several relays share the shards.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from sqlalchemy import and_, delete, func, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aerobee.client import Producer, SendStatus
from aerobee.contrib.outbox.claims import (
    LEASE_MS,
    WITH_SKIP_LOCKED,
    lease_shards,
    lock_shards,
    release_shards,
    require_shards,
)
from aerobee.contrib.outbox.row import ERROR_CHARS_MAX, message_of, retry_pause_ms
from aerobee.contrib.outbox.tables import outbox
from aerobee.contrib.outbox.wakeup import Wakeup
from aerobee.errors import AerobeeError, UsageError
from aerobee.message import Message, MessageQueue

log = logging.getLogger(__name__)

BATCH_ROWS = 500
POLL_S = 1.0
ERROR_PAUSE_S = 1.0
SEND_TIMEOUT_S = LEASE_MS / 1000 / 10
Row = Mapping[str, Any]


class OutboxRelay:
    """Sends rows while run() runs. `sent` counts the rows that brokers stored.

    The engine must be asynchronous (postgresql+asyncpg, postgresql+psycopg, mysql+asyncmy,
    sqlite+aiosqlite), the producer started.
    """

    def __init__(
        self, engine: AsyncEngine, producer: Producer, *, batch_rows: int = BATCH_ROWS, poll_s: float = POLL_S
    ) -> None:
        """`batch_rows`: maximum number of rows of one transaction. `poll_s`: seconds between two looks at an empty
        table; on PostgreSQL a commit wakes the relay."""
        if batch_rows < 1 or poll_s <= 0:
            raise UsageError(f"batch_rows is {batch_rows} and poll_s {poll_s}: both must be above 0")
        self.sent = 0
        self._engine = engine.execution_options(
            **({} if engine.dialect.name == "sqlite" else {"isolation_level": "READ COMMITTED"})
        )
        self._producer = producer
        self._batch_rows = batch_rows
        self._poll_s = poll_s
        self._owner = uuid.uuid4().hex
        self._has_locks = engine.dialect.name in WITH_SKIP_LOCKED
        self._wakeup = Wakeup(engine)
        self._is_stopping = False

    def stop(self) -> None:
        """Let run() return when the present batch is recorded."""
        self._is_stopping = True
        self._wakeup.wake()

    async def run(self) -> None:
        """Send until stop(). Failures of the database and of brokers are logged and tried again.

        Raises UsageError when the rows of the shards are missing.
        """
        async with AsyncExitStack() as stack:
            wakeup = await stack.enter_async_context(self._wakeup)
            stack.push_async_callback(self._release)
            while not self._is_stopping:
                try:
                    done = await self.run_once()
                except (SQLAlchemyError, OSError) as error:
                    log.warning("the outbox cannot be read or written: %s; trying again", error)
                    await asyncio.sleep(ERROR_PAUSE_S)
                    continue
                if not done and not self._is_stopping:
                    await wakeup.wait(self._poll_s)

    async def run_once(self) -> int:
        """Send one batch; returns how many rows left the table. Raises SQLAlchemyError, and UsageError when the rows of
        the shards are missing; nothing is lost then."""
        if self._has_locks:
            async with self._engine.begin() as connection:
                wanted = await self._shards_with_rows(connection)
                mine = await self._claim(connection, wanted)
                rows = await self._rows(connection, mine)
                return await self._record(connection, rows, await self._send(rows))
        async with self._engine.begin() as connection:
            wanted = await self._shards_with_rows(connection)
            mine = await self._claim(connection, wanted)
            rows = await self._rows(connection, mine)
        outcome = await self._send(
            rows
        )  # without a transaction: SQLite has one writer, the application waits for it
        async with self._engine.begin() as connection:
            return await self._record(connection, rows, outcome)

    async def _claim(self, connection: AsyncConnection, wanted: Sequence[int]) -> list[int]:
        """Those of these shards that no other relay has. Raises UsageError for a shard that no relay can have."""
        if not wanted:
            return []
        if self._has_locks:
            mine = await lock_shards(connection, wanted)
        else:
            mine = await lease_shards(connection, wanted, self._owner, _now_ms())
        if len(mine) < len(wanted):
            await require_shards(connection, wanted)
        return mine

    async def _shards_with_rows(self, connection: AsyncConnection) -> list[int]:
        statement = select(outbox.c.shard).where(outbox.c.retry_at_ms <= _now_ms()).distinct()
        return sorted((await connection.execute(statement)).scalars())

    async def _rows(self, connection: AsyncConnection, mine: Sequence[int]) -> list[Row]:
        """The oldest rows of these shards that may be sent: none behind a row of its key that waits for its retry."""
        if not mine:
            return []
        now_ms, earlier = _now_ms(), outbox.alias()
        waits = (
            select(earlier.c.id)
            .where(
                earlier.c.shard == outbox.c.shard,
                earlier.c.order_key == outbox.c.order_key,
                func.length(earlier.c.order_key) > 0,  # MySQL: a key of blanks equals ""
                earlier.c.id < outbox.c.id,
                earlier.c.retry_at_ms > now_ms,
            )
            .exists()
        )
        statement = (
            select(outbox)
            .where(and_(outbox.c.shard.in_(mine), outbox.c.retry_at_ms <= now_ms, ~waits))
            .order_by(outbox.c.id)
            .limit(self._batch_rows)
        )
        return [dict(row) for row in (await connection.execute(statement)).mappings()]

    # --- sending

    async def _send(self, rows: Sequence[Row]) -> dict[int, str]:
        """Send the rows, keys concurrently; returns id -> reason of a failure, "" when stored. A row behind a failed
        one of its key is absent."""
        chains: dict[str, list[Row]] = {}
        for row in rows:
            chains.setdefault(row["order_key"] or f"\0{row['id']}", []).append(row)
        outcome: dict[int, str] = {}
        end_s = time.monotonic() + LEASE_MS / 1000 / 2

        async def send_chain(chain: list[Row]) -> None:
            for row in chain:
                if time.monotonic() >= end_s:
                    return  # the rest belongs to the next batch, perhaps of another relay
                outcome[row["id"]] = await self._send_one(row)
                if outcome[row["id"]]:
                    return

        async with asyncio.TaskGroup() as tasks:
            for chain in chains.values():
                tasks.create_task(send_chain(chain))
        return outcome

    async def _send_one(self, row: Row) -> str:
        spread = zlib.crc32(row["dedup_key"].encode())

        def one_queue(queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
            return queues[spread % len(queues)]

        try:
            message = message_of(row)
            # A repeated send must reach the broker that may have the row's message already.
            if row["order_key"]:
                result = await self._producer.send(
                    message, message_group=row["order_key"], timeout_s=SEND_TIMEOUT_S
                )
            else:
                result = await self._producer.send(message, selector=one_queue, timeout_s=SEND_TIMEOUT_S)
        except (AerobeeError, ValueError) as error:
            return str(error) or repr(error)
        return "" if result.status is SendStatus.SEND_OK else f"the broker answered {result.status.value}"

    async def _record(self, connection: AsyncConnection, rows: Sequence[Row], outcome: dict[int, str]) -> int:
        """Delete what was stored, and note what failed."""
        stored = [row_id for row_id, why in outcome.items() if not why]
        if stored:
            await connection.execute(delete(outbox).where(outbox.c.id.in_(stored)))
        for row in rows:
            why = outcome.get(row["id"], "")
            if not why:
                continue
            attempts = row["attempts"] + 1
            log.warning("row %d of the outbox, for topic %s, is not sent: %s", row["id"], row["topic"], why)
            await connection.execute(
                update(outbox)
                .where(outbox.c.id == row["id"])
                .values(
                    attempts=attempts,
                    last_error=why[:ERROR_CHARS_MAX],
                    retry_at_ms=_now_ms() + retry_pause_ms(attempts),
                )
            )
        self.sent += len(stored)
        return len(stored)

    async def _release(self) -> None:
        if self._has_locks:
            return
        try:
            async with self._engine.begin() as connection:
                await release_shards(connection, self._owner)
        except SQLAlchemyError as error:
            log.warning("the shards of this relay are free in %d s: %s", LEASE_MS // 1000, error)


async def waiting_rows(engine: AsyncEngine) -> tuple[int, int]:
    """Number of rows in the outbox, and of those whose last try failed. Raises SQLAlchemyError."""
    total = select(func.count()).select_from(outbox)
    async with engine.connect() as connection:
        return (
            (await connection.execute(total)).scalar_one(),
            (await connection.execute(total.where(outbox.c.attempts > 0))).scalar_one(),
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
