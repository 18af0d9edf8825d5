"""Which relay sends the rows of which shard: one at a time, so that rows of one order key keep their order.

PostgreSQL and MySQL: the relay locks the rows of its shards (FOR UPDATE SKIP LOCKED) in the transaction in which it
deletes what it sent. The lock ends with the relay's connection. SQLite has no such locks: there the relay writes its name
and an end of its lease into the shard's row.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from aerobee.contrib.outbox.row import SHARD_TABLE
from aerobee.contrib.outbox.tables import shards
from aerobee.errors import UsageError

LEASE_MS = 30_000
WITH_SKIP_LOCKED = ("postgresql", "mysql", "mariadb")


async def require_shards(connection: AsyncConnection, wanted: Sequence[int]) -> None:
    """Raise UsageError if a shard has no row: no relay could lock it, and its messages would wait forever."""
    found = await connection.execute(select(shards.c.shard).where(shards.c.shard.in_(wanted)))
    missing = sorted(set(wanted) - set(found.scalars()))
    if missing:
        raise UsageError(
            f"table {SHARD_TABLE} has no row for shard {', '.join(map(str, missing))}, so messages of the outbox cannot be sent: "
            "await create_tables(engine), start the relay with --create-tables, or run manage.py migrate"
        )


async def lock_shards(connection: AsyncConnection, wanted: Sequence[int]) -> list[int]:
    """Lock those of these shards that no other relay has, until the end of the transaction."""
    statement = (
        select(shards.c.shard)
        .where(shards.c.shard.in_(wanted))
        .order_by(shards.c.shard)
        .with_for_update(skip_locked=True)
    )
    return list((await connection.execute(statement)).scalars())


async def lease_shards(
    connection: AsyncConnection, wanted: Sequence[int], owner: str, now_ms: int
) -> list[int]:
    """Take those of these shards that no other relay has a lease of, for LEASE_MS from now on. Commit makes it so."""
    for shard in wanted:
        await connection.execute(
            update(shards)
            .where(shards.c.shard == shard, (shards.c.owner == owner) | (shards.c.lease_until_ms <= now_ms))
            .values(owner=owner, lease_until_ms=now_ms + LEASE_MS)
        )
    found = select(shards.c.shard).where(shards.c.shard.in_(wanted), shards.c.owner == owner)
    return list((await connection.execute(found)).scalars())


async def release_shards(connection: AsyncConnection, owner: str) -> None:
    """Give back all leases of this relay."""
    await connection.execute(update(shards).where(shards.c.owner == owner).values(owner="", lease_until_ms=0))
