"""Deduplication against real databases: one effect for each message, whatever dies in between."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aerobee.client import ReceivedMessage
from aerobee.client.base.received import decode_messages
from aerobee.client.dedup import deduplicated
from aerobee.clock import ManualClock
from aerobee.errors import UsageError
from aerobee.message import Message, MessageQueue, encode_properties, encode_record, pack_host
from aerobee.testing import LocalCluster
from tests.integration.databases import postgresql, redis_server

sqlalchemy = pytest.importorskip("sqlalchemy", reason="needs the extra dedup")
pytest.importorskip("redis", reason="needs the extra dedup")

from sqlalchemy.ext.asyncio import create_async_engine  # noqa: E402

from aerobee.client.dedup.redis import RedisDedup  # noqa: E402
from aerobee.client.dedup.sql import SqlDedup  # noqa: E402

WORKER = Path(__file__).with_name("dedup_worker.py")
KINDS = ("sqlite", "postgresql", "redis")


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with redis_server() as url:
        yield url


class Bookings:
    """A database with deduplication and the bookings that handlers make in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_redis = url.startswith("redis:")
        self.store: Any = RedisDedup(url) if self.is_redis else SqlDedup(url)

    async def prepare(self) -> None:
        if self.is_redis:
            await self.store._redis.flushdb()
            return
        engine = self.store._engine
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("DROP TABLE IF EXISTS bookings"))
            connection.execute(sqlalchemy.text("DROP TABLE IF EXISTS aerobee_dedup"))
            connection.execute(sqlalchemy.text("CREATE TABLE bookings (what VARCHAR(100))"))

    def book(self, message: ReceivedMessage, target: Any) -> None:
        what = message.body.decode()
        if self.is_redis:
            target.rpush("bookings", what)
        else:
            target.execute(sqlalchemy.text("INSERT INTO bookings VALUES (:what)"), {"what": what})

    async def booked(self) -> list[str]:
        if self.is_redis:
            return sorted(entry.decode() for entry in await self.store._redis.lrange("bookings", 0, -1))
        with self.store._engine.connect() as connection:
            return sorted(row[0] for row in connection.execute(sqlalchemy.text("SELECT what FROM bookings")))


@pytest.fixture(params=KINDS)
async def bookings(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bookings]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/bookings.db"
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    target = Bookings(url)
    await target.prepare()
    yield target
    await target.store.close()


def received(body: bytes, **properties: str) -> ReceivedMessage:
    record = encode_record(
        topic=b"payments",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=body,
        properties=encode_properties(properties).encode(),
        born_host=pack_host("127.0.0.1", 1),
        store_host=pack_host("127.0.0.1", 2),
    )
    return decode_messages(record, MessageQueue("payments", "broker-a", 0))[0]


async def test_a_message_that_comes_twice_has_one_effect(bookings: Bookings) -> None:
    handle = deduplicated(bookings.store, "bookkeepers", bookings.book)
    for _ in range(2):
        await handle(received(b"first", UNIQ_KEY="A1"))
        await handle([received(b"second", UNIQ_KEY="A2"), received(b"third", UNIQ_KEY="A3")])
    assert await bookings.booked() == ["first", "second", "third"]


async def test_deliveries_at_the_same_time_have_one_effect(bookings: Bookings) -> None:
    handle = deduplicated(bookings.store, "bookkeepers", bookings.book)
    messages = [received(b"%d" % (number % 5), UNIQ_KEY=f"A{number % 5}") for number in range(40)]
    await asyncio.gather(*(handle(message) for message in messages))
    assert await bookings.booked() == ["0", "1", "2", "3", "4"]


async def test_a_handler_that_fails_leaves_nothing_and_may_try_again(bookings: Bookings) -> None:
    failures = iter([True, False])

    def book(message: ReceivedMessage, target: Any) -> None:
        bookings.book(message, target)
        if next(failures):
            raise ValueError("no money")

    handle = deduplicated(bookings.store, "bookkeepers", book)
    with pytest.raises(ValueError, match="no money"):
        await handle(received(b"pay", UNIQ_KEY="A1"))
    assert await bookings.booked() == []
    await handle(received(b"pay", UNIQ_KEY="A1"))
    assert await bookings.booked() == ["pay"]


async def test_groups_and_keys_are_kept_apart(bookings: Bookings) -> None:
    first = deduplicated(bookings.store, "bookkeepers", bookings.book)
    other = deduplicated(bookings.store, "auditors", bookings.book)
    by_body = deduplicated(
        bookings.store, "bookkeepers", bookings.book, key=lambda message: message.body.decode() * 300
    )
    await first(received(b"x", UNIQ_KEY="A1"))
    await other(received(b"x", UNIQ_KEY="A1"))
    await first(received(b"x", UNIQ_KEY="A2", DEDUP_KEY="A1"))  # the producer's own key
    await by_body(received(b"x", UNIQ_KEY="A3"))
    await by_body(received(b"x", UNIQ_KEY="A4"))
    assert await bookings.booked() == ["x", "x", "x"]


@pytest.mark.parametrize("die", ["before-commit", "after-commit"])
async def test_a_consumer_that_dies_between_effect_and_acknowledgement(bookings: Bookings, die: str) -> None:
    async def worker(die: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            cluster.nameserver_address,
            bookings.url,
            die,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": str(WORKER.parents[2]), "PATH": "/usr/bin:/bin"},
        )
        workers.append(process)
        return process

    workers: list[asyncio.subprocess.Process] = []
    async with LocalCluster() as cluster, AsyncExitStack() as cleanup:
        cleanup.callback(lambda: [each.kill() for each in workers if each.returncode is None])
        await cluster.create_topic("payments", 1)
        async with cluster.producer() as producer:
            await producer.send(Message("payments", b"once"))
        async with asyncio.timeout(120):
            crashing = await worker(die)
            assert await crashing.wait() == 9
            booked = ["once"] if die == "after-commit" else []
            assert await bookings.booked() == booked
            # Nothing was acknowledged: the next member of the group gets the message again.
            second = await worker("never")
            assert second.stdout is not None
            assert second.stdin is not None
            line = await second.stdout.readline()
            assert line.split()[0] == (b"known" if die == "after-commit" else b"done")
            second.stdin.close()
            assert await second.wait() == 0
        assert await bookings.booked() == ["once"]


async def test_an_async_engine_takes_async_handlers(postgresql_url: str) -> None:
    target = Bookings(postgresql_url)
    await target.prepare()
    store = SqlDedup(create_async_engine(postgresql_url))

    async def book(message: ReceivedMessage, connection: Any) -> None:
        await connection.execute(
            sqlalchemy.text("INSERT INTO bookings VALUES (:what)"), {"what": message.body.decode()}
        )

    handle = deduplicated(store, "bookkeepers", book)
    await asyncio.gather(*(handle(received(b"async", UNIQ_KEY="A1")) for _ in range(5)))
    assert await target.booked() == ["async"]
    assert await store.purge(older_than_s=-1) == 1
    await store.close()
    await target.store.close()


async def test_old_keys_are_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqlDedup(f"sqlite:///{tmp_path}/keys.db", keep_s=100, clock=clock)
    assert await store.run_once("g", "k", lambda connection: None)
    clock.advance(99)
    assert not await store.run_once("g", "k", lambda connection: None)
    clock.advance(600)
    assert await store.run_once("g", "k", lambda connection: None)
    await store.close()


def test_what_cannot_work_is_refused_at_once() -> None:
    async def handler(message: ReceivedMessage, connection: Any) -> None: ...

    with pytest.raises(UsageError, match="create_async_engine"):
        deduplicated(SqlDedup("sqlite:///x.db"), "g", handler)
    with pytest.raises(UsageError, match="SQLite and PostgreSQL"):
        SqlDedup(sqlalchemy.create_mock_engine("mysql://", lambda *a: None))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least a second"):
        RedisDedup("redis://127.0.0.1:1/0", keep_s=0)
