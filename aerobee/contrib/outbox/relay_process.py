"""A relay as a process: from the command line, and from Django's management command."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from sqlalchemy.ext.asyncio import create_async_engine

from aerobee.client import Producer
from aerobee.contrib.outbox.relay import OutboxRelay
from aerobee.contrib.outbox.tables import create_tables

log = logging.getLogger(__name__)
GROUP = "aerobee_outbox_relay"


async def run_relay(
    database: str, nameservers: str, *, creates_tables: bool, batch_rows: int, poll_s: float
) -> None:
    """Relay rows from this database until SIGTERM or SIGINT; the batch that is being sent is finished first.

    Raises SQLAlchemyError when the database is unreachable at the start, UsageError for invalid numbers.
    """
    engine = create_async_engine(database, pool_pre_ping=True)
    try:
        if creates_tables:
            await create_tables(engine)
        async with Producer(nameservers, GROUP) as producer:
            relay = OutboxRelay(engine, producer, batch_rows=batch_rows, poll_s=poll_s)
            if sys.platform != "win32":  # there Ctrl-C cancels, and the next relay repeats what was under way
                loop = asyncio.get_running_loop()
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, relay.stop)
            await relay.run()
            log.info("the relay has sent %d rows", relay.sent)
    finally:
        await engine.dispose()
