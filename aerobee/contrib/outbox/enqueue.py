"""Puts messages into the outbox within the application's transaction (SQLAlchemy 2)."""

from __future__ import annotations

from sqlalchemy import Connection, insert, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from aerobee.contrib.outbox.row import CHANNEL, row_of
from aerobee.contrib.outbox.tables import outbox
from aerobee.message import Message

_NOTIFY = text("SELECT pg_notify(:channel, '')").bindparams(channel=CHANNEL)


async def enqueue(session: AsyncSession | AsyncConnection, message: Message, *, key: str = "") -> None:
    """Insert `message` into the outbox, in the transaction of `session`: it is sent if, and only if, that commits.

    `key`: rows with the same key are sent in the order of their inserts, into one queue of the topic; "" : without an
    order. Transactions that insert rows of the same key concurrently have no order: lock what the key stands for first
    (SELECT … FOR UPDATE of the order, the account). Raises UsageError for a message that the outbox cannot keep.
    """
    await session.execute(insert(outbox).values(row_of(message, key)))
    if _dialect_name(session) == "postgresql":
        await session.execute(_NOTIFY)  # delivered to relays at the commit


def enqueue_sync(session: Session | Connection, message: Message, *, key: str = "") -> None:
    """The same for synchronous sessions and connections."""
    session.execute(insert(outbox).values(row_of(message, key)))
    bind = session.get_bind() if isinstance(session, Session) else session
    if bind.dialect.name == "postgresql":
        session.execute(_NOTIFY)


def _dialect_name(session: AsyncSession | AsyncConnection) -> str:
    bind = session.get_bind() if isinstance(session, AsyncSession) else session
    return bind.dialect.name
