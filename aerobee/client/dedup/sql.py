"""Deduplication in SQLite or PostgreSQL, through SQLAlchemy: the keys are in the same database as the handler's tables.

    store = SqlDedup("sqlite:///orders.db")
    PushConsumer(..., handler=deduplicated(store, "billing", charge))

    def charge(message: ReceivedMessage, connection: sqlalchemy.Connection) -> None:
        connection.execute(...)          # committed together with the key

One table, made when it is missing:

    aerobee_dedup (consumer_group, message_key, consumed_at)     primary key (consumer_group, message_key)

`consumed_at` is ms since the epoch. The key is inserted first: PostgreSQL lets a second delivery of the same message
wait for the first one's end, SQLite has one writer at a time. Keys older than `keep_s` are removed occasionally; keep
them longer than a message can be redelivered (retries take up to 5 hours, a reset of offsets any time).
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Executable,
    Index,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aerobee.client.dedup.handler import Effect
from aerobee.clock import Clock, SystemClock
from aerobee.errors import UsageError

TABLE = "aerobee_dedup"
WEEK_S = 7 * 86_400.0
PURGE_EVERY_S = 600.0
INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class SqlDedup:
    """Keys in a table of a database. Takes an Engine, an AsyncEngine, or the URL of an Engine.

    With an Engine the handler is a plain function that is called in a thread; with an AsyncEngine it may be `async def`
    and gets an AsyncConnection.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine | str,
        *,
        table: str = TABLE,
        keep_s: float = WEEK_S,
        clock: Clock | None = None,
    ) -> None:
        """Opens nothing. Raises UsageError for a database that is neither SQLite nor PostgreSQL."""
        self._engine = create_engine(engine) if isinstance(engine, str) else engine
        self.is_async = isinstance(self._engine, AsyncEngine)
        dialect = self._engine.dialect.name
        if dialect not in INSERTS:
            raise UsageError(f"deduplication works in SQLite and PostgreSQL, this engine is for {dialect}")
        self._dialect = dialect
        self._keep_s = keep_s
        self._clock = clock or SystemClock()
        self._metadata = MetaData()
        self.table = Table(
            table,
            self._metadata,
            Column("consumer_group", String(255), primary_key=True),
            Column("message_key", String(255), primary_key=True),
            Column("consumed_at", BigInteger, nullable=False),
        )
        Index(f"{table}_consumed_at", self.table.c.consumed_at)
        self._made: asyncio.Task[None] | None = None
        self._purged_at: float | None = None

    async def run_once(self, group: str, key: str, effect: Effect) -> bool:
        """See DedupStore. Committed, as durable as the database makes it, when it returns."""
        await self.create_table()
        now = self._clock.monotonic()
        if self._purged_at is None or now - self._purged_at >= PURGE_EVERY_S:
            self._purged_at = now
            await self.purge()
        claim = (
            INSERTS[self._dialect](self.table)
            .values(consumer_group=group, message_key=key, consumed_at=self._clock.now_ms())
            .on_conflict_do_nothing()
            # The returned row proves the insertion; not all drivers count rows.
            .returning(self.table.c.message_key)
        )
        if isinstance(self._engine, AsyncEngine):
            return await self._run_async(self._engine, claim, effect)
        return await asyncio.to_thread(_run, self._engine, claim, effect)

    @staticmethod
    async def _run_async(engine: AsyncEngine, claim: Executable, effect: Effect) -> bool:
        connection: AsyncConnection
        async with engine.begin() as connection:
            if not _claimed(await connection.execute(claim)):
                return False
            returned = effect(connection)
            if inspect.isawaitable(returned):
                await returned
        return True

    async def create_table(self) -> None:
        """Create the table if it is missing. Several processes may do so at the same time."""
        if self._made is None or (self._made.done() and (self._made.cancelled() or self._made.exception())):
            self._made = asyncio.get_running_loop().create_task(self._create(), name="dedup-create-table")
        await asyncio.shield(self._made)

    async def _create(self) -> None:
        try:
            await self._create_once()
        except DBAPIError:
            # Another process created it between the check and our CREATE; any other error occurs again below.
            await self._create_once()

    async def _create_once(self) -> None:
        if isinstance(self._engine, AsyncEngine):
            async with self._engine.begin() as connection:
                await connection.run_sync(self._metadata.create_all)
        else:
            await asyncio.to_thread(self._metadata.create_all, self._engine)

    async def purge(self, older_than_s: float | None = None) -> int:
        """Remove keys that are older than `keep_s`, or than `older_than_s`; return their number."""
        await self.create_table()
        age_s = self._keep_s if older_than_s is None else older_than_s
        old = delete(self.table).where(self.table.c.consumed_at < self._clock.now_ms() - round(age_s * 1000))
        if isinstance(self._engine, AsyncEngine):
            async with self._engine.begin() as connection:
                return int((await connection.execute(old)).rowcount)
        return await asyncio.to_thread(_delete, self._engine, old)

    async def close(self) -> None:
        """Close the engine's connections."""
        if isinstance(self._engine, AsyncEngine):
            await self._engine.dispose()
        else:
            await asyncio.to_thread(self._engine.dispose)


def _run(engine: Engine, claim: Executable, effect: Effect) -> bool:
    connection: Connection
    with engine.begin() as connection:
        if not _claimed(connection.execute(claim)):
            return False
        effect(connection)
    return True


def _delete(engine: Engine, old: Executable) -> int:
    with engine.begin() as connection:
        return int(connection.execute(old).rowcount)


def _claimed(result: Any) -> bool:
    return result.first() is not None
