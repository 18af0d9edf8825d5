"""The outbox: committed rows are in their topic once and in order, whoever is killed; PostgreSQL, MySQL, MariaDB and SQLite, Django too.

AEROBEE_OUTBOX_KILLS sets the number of kills (12 by default).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aerobee.contrib.outbox.enqueue import enqueue
from aerobee.contrib.outbox.relay import OutboxRelay, waiting_rows
from aerobee.contrib.outbox.row import message_of, retry_pause_ms, row_of
from aerobee.contrib.outbox.tables import create_tables, outbox
from aerobee.errors import UsageError
from aerobee.message import Message, Record, decode_record
from aerobee.testing import LocalCluster
from tests.integration.contrib import outbox_app
from tests.integration.contrib.outbox_app import TOPIC
from tests.integration.databases import has_mysql, mariadb, mysql, postgresql
from tests.waiting import wait_until

KILLS = int(os.environ.get("AEROBEE_OUTBOX_KILLS", "12"))
ROOT = Path(__file__).parents[3]
APPLICATION = Path(outbox_app.__file__)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[str]:
    with mariadb() as url:
        yield url


@pytest.fixture(scope="module")
def mysql_server() -> Iterator[str]:
    with mysql() as url:
        yield url


@pytest.fixture(
    params=[
        ("server", "postgresql+psycopg"),
        ("server", "postgresql+asyncpg"),
        *([("mysql_server", "mysql+asyncmy")] if has_mysql() else []),
        ("mariadb_server", "mysql+asyncmy"),
        ("mariadb_server", "mariadb+asyncmy"),
        ("", "sqlite"),
    ],
    ids="-".join,
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    fixture, scheme = request.param
    if not fixture:
        return f"sqlite+aiosqlite:///{tmp_path}/app.db"
    server: str = request.getfixturevalue(fixture)
    return (
        asyncmy_url(server, scheme) if "asyncmy" in scheme else server.replace("postgresql+psycopg", scheme)
    )


def asyncmy_url(url: str, scheme: str = "mysql+asyncmy") -> str:
    """The URL with a driver, and with a character set that has all characters."""
    return url.replace("mysql", scheme, 1) + "?charset=utf8mb4"


@asynccontextmanager
async def fresh(url: str) -> AsyncIterator[AsyncEngine]:
    """An engine whose database has empty tables."""
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            for table in ("aerobee_outbox", "aerobee_outbox_shard", "counters", "facts"):
                await connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
        await create_tables(engine)
        await create_tables(engine)  # a second process does the same
        yield engine
    finally:
        await engine.dispose()


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    async with fresh(url) as engine:
        yield engine


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config={"dedup_window_millis": 3_600_000}) as cluster:
        await cluster.create_topic(TOPIC)
        yield cluster


def stored(cluster: LocalCluster, topic: str = TOPIC) -> list[Record]:
    """Every record of the topic, in the order of the log."""
    store = cluster.broker().store
    found = []
    for (name, _), queue in store.queues.items():
        if name == topic:
            for offset in range(queue.max_offset):
                entry = queue.entry(offset)
                assert isinstance(entry, tuple)
                found.append(decode_record(store.log.read(entry[0], entry[1])))
    return sorted(found, key=lambda record: record.physical_offset)


async def put(engine: AsyncEngine, *bodies: str, key: str = "", commits: bool = True) -> None:
    async with engine.connect() as connection:
        transaction = await connection.begin()
        for body in bodies:
            message = Message(TOPIC, body.encode(), tag="t", keys=("a", "b"), properties={"colour": "red"})
            await enqueue(connection, message, key=key)
        await (transaction.commit() if commits else transaction.rollback())


async def test_committed_rows_are_sent_in_order_and_rolled_back_ones_are_not(
    engine: AsyncEngine, cluster: LocalCluster
) -> None:
    await put(engine, "1", "2", "3", key="k")
    await put(engine, "no", key="k", commits=False)
    await put(engine, "4", key="k")
    async with cluster.producer("relays") as producer:
        relay = OutboxRelay(engine, producer)
        assert await relay.run_once() == 4
        assert await relay.run_once() == 0
    records = stored(cluster)
    assert [record.body for record in records] == [b"1", b"2", b"3", b"4"]
    assert len({record.queue_id for record in records}) == 1
    assert (records[0].tag, records[0].properties["KEYS"], records[0].properties["colour"]) == (
        "t",
        "a b",
        "red",
    )
    assert await waiting_rows(engine) == (0, 0)


async def test_a_row_that_is_sent_again_is_stored_once(
    engine: AsyncEngine, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(engine, *"abc")
    async with cluster.producer("relays") as producer:
        with monkeypatch.context() as patch:

            async def dies(*args: Any) -> int:
                raise ConnectionError("the relay died before it deleted what it had sent")

            patch.setattr(OutboxRelay, "_record", dies)
            first = OutboxRelay(engine, producer)
            with pytest.raises(ConnectionError):
                await first.run_once()
            await first._release()
        assert (await waiting_rows(engine))[0] == 3
        assert await OutboxRelay(engine, producer).run_once() == 3
    assert sorted(record.body for record in stored(cluster)) == [b"a", b"b", b"c"]


async def test_a_row_that_cannot_be_sent_holds_up_its_key_only(
    engine: AsyncEngine, cluster: LocalCluster
) -> None:
    async with engine.begin() as connection:
        await enqueue(connection, Message("rmq_sys_wheel_timer", b"refused"), key="bad")
        await enqueue(connection, Message(TOPIC, b"behind it"), key="bad")
        await enqueue(connection, Message(TOPIC, b"another key"), key="good")
    async with cluster.producer("relays") as producer:
        relay = OutboxRelay(engine, producer)
        assert await relay.run_once() == 1
        assert await relay.run_once() == 0, "the next try is not due"
        assert [record.body for record in stored(cluster)] == [b"another key"]
        assert await waiting_rows(engine) == (2, 1)
        async with engine.begin() as connection:
            row = (await connection.execute(outbox.select().order_by(outbox.c.id))).mappings().first()
            assert row is not None
            assert row["attempts"] == 1
            assert row["last_error"]
            await connection.execute(outbox.delete().where(outbox.c.id == row["id"]))
        assert await relay.run_once() == 1
    assert [record.body for record in stored(cluster)] == [b"another key", b"behind it"]


async def test_an_outbox_without_the_rows_of_its_shards_is_an_error(
    engine: AsyncEngine, cluster: LocalCluster
) -> None:
    """The relay sent nothing, and said nothing."""
    await put(engine, "x")
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM aerobee_outbox_shard"))
    async with cluster.producer("relays") as producer:
        relay = OutboxRelay(engine, producer, poll_s=0.05)
        with pytest.raises(UsageError, match=r"aerobee_outbox_shard has no row for shard .*create_tables"):
            await relay.run()
        await create_tables(engine)
        assert await relay.run_once() == 1
    assert [record.body for record in stored(cluster)] == [b"x"]


async def test_any_character_is_kept_and_keys_that_differ_in_case_are_different(
    engine: AsyncEngine, cluster: LocalCluster
) -> None:
    await put(engine, "1 🐝", key="Ж")
    await put(engine, "2 é", key="ж")
    async with engine.begin() as connection:
        await connection.execute(
            update(outbox).where(outbox.c.order_key == "Ж").values(retry_at_ms=2**62, last_error="🐝")
        )
    async with cluster.producer("relays") as producer:
        assert await OutboxRelay(engine, producer).run_once() == 1
    assert [record.body.decode() for record in stored(cluster)] == ["2 é"]


async def test_a_relay_wakes_up_at_a_commit_and_stops_when_told(
    engine: AsyncEngine, cluster: LocalCluster
) -> None:
    is_notified = engine.dialect.name == "postgresql"
    async with cluster.producer("relays") as producer:
        relay = OutboxRelay(engine, producer, poll_s=600.0 if is_notified else 0.05)
        running = asyncio.create_task(relay.run())
        if is_notified:
            look = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"

            async def listens() -> bool:
                async with engine.connect() as connection:
                    return bool((await connection.execute(text(look))).scalar())

            await wait_until(listens, "the relay listens")
        await put(engine, "x")
        await wait_until(lambda: relay.sent == 1, "the row is sent")
        relay.stop()
        await running
    assert [record.body for record in stored(cluster)] == [b"x"]


async def test_two_relays_share_the_work_and_keep_the_order(
    engine: AsyncEngine, cluster: LocalCluster
) -> None:
    for number in range(30):
        await put(engine, f"{number}a", key="a")
        await put(engine, f"{number}b", key="b")
    async with cluster.producer("one") as one, cluster.producer("two") as two:
        relays = [OutboxRelay(engine, each, batch_rows=4, poll_s=0.01) for each in (one, two)]
        tasks = [asyncio.create_task(relay.run()) for relay in relays]
        await wait_until(lambda: sum(relay.sent for relay in relays) == 60, "all rows are sent")
        for relay in relays:
            relay.stop()
        await asyncio.gather(*tasks)
    bodies = [record.body.decode() for record in stored(cluster)]
    for key in "ab":
        assert [body for body in bodies if body.endswith(key)] == [f"{number}{key}" for number in range(30)]


# --- kills


async def spawn(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=DEVNULL, stderr=DEVNULL, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )  # fmt: skip


async def application(url: str, number: int) -> Process:
    return await spawn(str(APPLICATION), url, f"application-{number}")


async def relay(url: str, cluster: LocalCluster) -> Process:
    return await spawn(
        "-m", "aerobee.contrib.outbox", "--database", url, "--nameserver", cluster.nameserver_address, "--poll", "0.1",
        "--batch", "20",
    )  # fmt: skip


async def end(process: Process) -> None:
    process.kill()
    await process.wait()


async def committed(engine: AsyncEngine) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    async with engine.connect() as connection:
        for name, number in await connection.execute(text("SELECT name, number FROM facts ORDER BY number")):
            found[name].append(number)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind_of_server", ["server", "mariadb_server", *(["mysql_server"] if has_mysql() else [])]
)
async def test_each_committed_row_is_in_the_topic_once_whoever_is_killed(
    kind_of_server: str, request: pytest.FixtureRequest, cluster: LocalCluster
) -> None:
    server: str = request.getfixturevalue(kind_of_server)
    if kind_of_server != "server":
        server = asyncmy_url(server)
    rng = random.Random(KILLS)
    async with fresh(server) as engine:
        await outbox_app.prepare(engine)
        applications = [await application(server, number) for number in range(2)]
        relays = [await relay(server, cluster) for _ in range(2)]
        try:
            for kill in range(KILLS):
                before = len(stored(cluster))
                await wait_until(lambda before=before: len(stored(cluster)) > before + 5, "rows are sent")
                await asyncio.sleep(rng.uniform(0, 0.3))
                kind = rng.choice(("application", "relay", "relay", "broker"))
                at = rng.randrange(2)
                if kind == "broker":
                    await cluster.kill_broker()
                    await asyncio.sleep(rng.uniform(0, 0.5))
                    await cluster.start_broker()
                elif kind == "relay":
                    await end(relays[at])
                    relays[at] = await relay(server, cluster)
                else:
                    await end(applications[at])
                    applications[at] = await application(server, 2 + kill)
            for each in applications:
                await end(each)

            async def is_empty() -> bool:
                return (await waiting_rows(engine))[0] == 0

            await wait_until(is_empty, "the outbox is empty", timeout_s=120)
        finally:
            for each in (*applications, *relays):
                if each.returncode is None:
                    await end(each)
        wanted = await committed(engine)
    found: dict[str, list[int]] = defaultdict(list)
    for record in stored(cluster):
        name, number, outcome, _ = record.body.decode().split(":")
        assert outcome == "committed", record.body
        found[name].append(int(number))
    print({name: len(numbers) for name, numbers in found.items()}, KILLS, "kills")
    assert found == wanted, "once each, and in order"
    assert sum(map(len, wanted.values())) > 5 * KILLS


# --- rows


def test_a_row_gives_its_message_back() -> None:
    message = Message("t", b"\x00\xff", tag="x", keys=("a", "b"), properties={"n": "v\u00e9"})
    row = {"id": 1, **row_of(message, "k", dedup_key="d" * 32, now_ms=5)}
    again = message_of(row)
    assert (again.topic, again.body, again.tag, again.keys) == ("t", b"\x00\xff", "x", ("a", "b"))
    assert again.properties == {"n": "v\u00e9", "DEDUP_KEY": "d" * 32}
    assert row_of(message, "k")["shard"] == row["shard"], "a key is in one shard"
    assert [retry_pause_ms(tries) for tries in (1, 2, 8, 1_000)] == [500, 1_000, 60_000, 60_000]


@pytest.mark.parametrize(
    ("message", "key", "says"),
    [
        (Message("t", b"x"), "k" * 256, "order key"),
        (Message("t", b"x", tag="t" * 256), "", "tag"),
        (Message("t", b"x", delay_level=1), "", "delayed"),
        (Message("t", b"x", properties={"DEDUP_KEY": "d"}), "", "DEDUP_KEY"),
    ],
)
def test_a_message_that_no_row_can_keep_is_refused(message: Message, key: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        row_of(message, key)
