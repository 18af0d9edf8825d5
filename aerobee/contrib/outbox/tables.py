"""The tables of the outbox for SQLAlchemy 2, and their creation. The columns are described in row.py."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from aerobee.contrib.outbox.row import (
    ORDER_KEY_CHARS_MAX,
    SHARD_TABLE,
    SHARDS,
    TABLE,
    TAG_CHARS_MAX,
    TOPIC_CHARS_MAX,
)

metadata = MetaData()
_BODY_BYTES_MAX = 2**24 - 1  # MySQL chooses MEDIUMBLOB
# Row locks, any character, and order keys that differ in case: whatever the database has as its defaults.
_OF_MYSQL: dict[str, Any] = {
    f"{dialect}_{name}": value
    for dialect in ("mysql", "mariadb")
    for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}

outbox = Table(
    TABLE,
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("shard", Integer, nullable=False),
    Column("order_key", String(ORDER_KEY_CHARS_MAX), nullable=False),
    Column("dedup_key", String(64), nullable=False),
    Column("topic", String(TOPIC_CHARS_MAX), nullable=False),
    Column("body", LargeBinary(_BODY_BYTES_MAX), nullable=False),
    Column("tag", String(TAG_CHARS_MAX), nullable=False),
    Column("message_keys", Text, nullable=False),
    Column("properties", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("last_error", Text, nullable=False),
    Column("retry_at_ms", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Index(f"{TABLE}_shard_id", "shard", "id"),
    **_OF_MYSQL,
)
# One row a shard: a relay holds its lock, or on SQLite its lease, while it sends rows of the shard.
shards = Table(
    SHARD_TABLE,
    metadata,
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("owner", String(64), nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
    **_OF_MYSQL,
)


async def create_tables(engine: AsyncEngine) -> None:
    """Create the tables and the rows of the shards, where they are missing. Safe to call from several processes."""
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with engine.connect() as connection:
        known = set((await connection.execute(select(shards.c.shard))).scalars())
    for shard in sorted(set(range(SHARDS)) - known):
        try:
            async with engine.begin() as connection:
                await connection.execute(insert(shards).values(shard=shard, owner="", lease_until_ms=0))
        except IntegrityError:  # another process made it
            continue
