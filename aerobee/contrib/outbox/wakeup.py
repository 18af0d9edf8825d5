"""Wakes a relay when rows were committed: by PostgreSQL's LISTEN, elsewhere by time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Any, Self

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aerobee.contrib.outbox.row import CHANNEL

log = logging.getLogger(__name__)
RETRY_S = 5.0


class Wakeup:
    """`async with Wakeup(engine) as wakeup: await wakeup.wait(1.0)`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._engine.dialect.name == "postgresql":
            self._task = asyncio.create_task(self._listen(), name="outbox-listen")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Let wait() return."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return after a commit with new rows, at the latest after `seconds`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()

    async def _listen(self) -> None:
        """Keep a connection that listens; while there is none, wait() polls."""
        while True:
            try:
                async with self._engine.connect() as connection:
                    await connection.execution_options(isolation_level="AUTOCOMMIT")
                    await connection.execute(text(f"LISTEN {CHANNEL}"))
                    await self._notifications(connection)
            except (SQLAlchemyError, OSError) as error:
                log.warning("the relay is not notified of new rows: %s; it polls, and tries again", error)
            except Exception as error:
                # A driver's own errors reach here unwrapped, because the notifications bypass SQLAlchemy.
                log.warning("the relay is not notified of new rows: %r; it polls, and tries again", error)
            await asyncio.sleep(RETRY_S)

    async def _notifications(self, connection: AsyncConnection) -> None:
        # Each branch wakes the relay once: rows that were committed before the connection listened are not notified.
        raw: Any = (await connection.get_raw_connection()).driver_connection
        if hasattr(raw, "add_listener"):  # asyncpg
            closed = asyncio.Event()
            await raw.add_listener(CHANNEL, lambda *_: self._event.set())
            raw.add_termination_listener(lambda *_: closed.set())
            self._event.set()
            await closed.wait()
            return
        self._event.set()
        async for _ in raw.notifies():  # psycopg
            self._event.set()
