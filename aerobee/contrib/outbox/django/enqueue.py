"""Puts messages into the outbox within Django's transaction."""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, connections

from aerobee.contrib.outbox.django.models import OutboxMessage
from aerobee.contrib.outbox.row import CHANNEL, row_of
from aerobee.errors import UsageError
from aerobee.message import Message


def enqueue(message: Message, *, key: str = "", using: str = DEFAULT_DB_ALIAS) -> None:
    """Insert `message` into the outbox of database `using`: it is sent if, and only if, the transaction commits.

    `key` as in aerobee.contrib.outbox.enqueue.enqueue(). Raises UsageError outside of transaction.atomic(), where the
    message would be committed without the change that it is about, and for a message that the outbox cannot keep.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        raise UsageError("enqueue() needs a transaction: call it inside `with transaction.atomic():`")
    OutboxMessage.objects.using(using).create(**row_of(message, key))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])  # delivered to relays at the commit
