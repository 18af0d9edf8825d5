"""LocalCluster and the fixtures of the pytest plugin, used as tests of another project use them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from pathlib import Path

import pytest

from aerobee.client.base.config import ConsumeFrom, ConsumerConfig
from aerobee.client.base.results import SendStatus
from aerobee.clock import AdvancingClock
from aerobee.errors import AerobeeError, UsageError
from aerobee.message import Message
from aerobee.store.files.disk import RealDisk
from aerobee.testing import LocalCluster, ThreadedCluster
from tests.waiting import wait_until

REPOSITORY = str(Path(__file__).resolve().parents[2])
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


async def receive(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with (
        asyncio.timeout(60),
        cluster.push_consumer("group", {topic: "*"}, config=FIRST) as consumer,
    ):
        async for message in consumer:
            bodies.append(message.body)
            message.ack()
            if len(bodies) == count:
                break
    return bodies


def dial(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=60).close()


async def test_messages_flow_in_the_event_loop_of_the_test(aerobee_cluster: LocalCluster) -> None:
    assert isinstance(aerobee_cluster, LocalCluster)
    assert isinstance(aerobee_cluster.clock, AdvancingClock)
    await aerobee_cluster.create_topic("orders", 2)
    async with aerobee_cluster.producer() as producer:
        for number in range(3):
            await producer.send(Message("orders", b"%d" % number))
    assert sorted(await receive(aerobee_cluster, "orders", 3)) == [b"0", b"1", b"2"]


@pytest.mark.asyncio(loop_scope="module")
async def test_messages_flow_in_a_loop_that_tests_share(aerobee_cluster: LocalCluster) -> None:
    async with asyncio.timeout(60), aerobee_cluster.producer() as producer:
        result = await producer.send(Message("orders", b"x"))
    assert result.status is SendStatus.SEND_OK


def test_a_test_without_a_loop_gets_a_cluster_in_a_thread(aerobee_cluster: ThreadedCluster) -> None:
    assert isinstance(aerobee_cluster, ThreadedCluster)
    aerobee_cluster.create_topic("orders")
    dial(aerobee_cluster.nameserver_address)
    aerobee_cluster.stop_broker()
    with pytest.raises(OSError):
        dial(aerobee_cluster.broker_addresses[0])
    aerobee_cluster.start_broker()
    aerobee_cluster.advance_clock(1)
    dial(aerobee_cluster.broker_addresses[0])


@pytest.mark.aerobee_cluster(brokers=2, nameservers=2, broker_config={"default_topic_queue_nums": 2})
async def test_a_marker_gives_the_options(aerobee_cluster: LocalCluster) -> None:
    assert aerobee_cluster.broker_names == ("broker-a", "broker-b")
    assert len(aerobee_cluster.nameserver_address.split(";")) == 2
    assert aerobee_cluster.broker(1).config.default_topic_queue_nums == 2


async def test_one_cluster_for_the_session_serves_async_tests(
    aerobee_cluster_session: ThreadedCluster,
) -> None:
    aerobee_cluster_session.create_topic("shared")
    assert_serves(aerobee_cluster_session)


def test_one_cluster_for_the_session_serves_other_tests(aerobee_cluster_session: ThreadedCluster) -> None:
    assert_serves(aerobee_cluster_session)


SESSION_CLUSTERS: set[str] = set()


def assert_serves(cluster: ThreadedCluster) -> None:
    """It answers, and is the one that other tests of the session had."""
    dial(cluster.nameserver_address)
    dial(cluster.broker_addresses[0])
    SESSION_CLUSTERS.add(cluster.nameserver_address)
    assert len(SESSION_CLUSTERS) == 1, SESSION_CLUSTERS


@pytest.mark.parametrize("way", ["stop_broker", "kill_broker"])
async def test_a_broker_comes_back_with_its_messages(aerobee_cluster: LocalCluster, way: str) -> None:
    address = aerobee_cluster.broker_addresses[0]
    await aerobee_cluster.create_topic("orders", 1)
    async with aerobee_cluster.producer() as producer:
        await producer.send(Message("orders", b"before"))
    await getattr(aerobee_cluster, way)(0)
    assert aerobee_cluster.nameserver().table.live == {}
    abort = aerobee_cluster.directory / "broker-a" / "abort"
    assert abort.exists() == (way == "kill_broker")
    with pytest.raises(UsageError, match="stopped"):
        aerobee_cluster.broker(0)
    await aerobee_cluster.start_broker(0)
    assert aerobee_cluster.broker_addresses == (address,)
    async with aerobee_cluster.producer() as producer:
        await producer.send(Message("orders", b"after"))
    assert await receive(aerobee_cluster, "orders", 2) == [b"before", b"after"]


async def test_a_client_that_knows_two_nameservers_works_while_one_is_up() -> None:
    async with LocalCluster(nameservers=2) as cluster, cluster.producer() as producer:
        await cluster.create_topic("orders")
        for index in (0, 1):
            await cluster.stop_nameserver(index)
            await cluster.create_topic(f"other-{index}")
            await producer.send(Message(f"other-{index}", b"x"))
            await cluster.start_nameserver(index)
            # Brokers register with it at their next period.
            await cluster.advance_clock(60)
            assert cluster.nameserver(index).table.live


async def test_a_clock_jump_of_hours_loses_no_client(aerobee_cluster: LocalCluster) -> None:
    before = aerobee_cluster.clock.now_ms()
    async with aerobee_cluster.producer() as producer:
        await producer.send(Message("orders", b"before"))
        await aerobee_cluster.advance_clock(3_600)
        assert aerobee_cluster.clock.now_ms() - before >= 3_600_000
        assert len(aerobee_cluster.nameserver().table.live) == 1
        await producer.send(Message("orders", b"after"))


async def test_a_delayed_message_comes_when_the_clock_says_so(aerobee_cluster: LocalCluster) -> None:
    await aerobee_cluster.create_topic("orders", 1)
    async with aerobee_cluster.producer() as producer:
        await producer.send(Message("orders", b"late", delay_level=18))  # two hours
    broker = aerobee_cluster.broker()
    await aerobee_cluster.advance_clock(3_600)
    assert broker.store.max_offset("orders", 0) == 0
    await aerobee_cluster.advance_clock(3_600)
    assert broker.store.max_offset("orders", 0) == 1


async def test_pull_consumer_and_admin_belong_to_the_cluster(aerobee_cluster: LocalCluster) -> None:
    await aerobee_cluster.create_topic("orders", 1)
    async with aerobee_cluster.producer() as producer:
        result = await producer.send(Message("orders", b"x"))
    async with aerobee_cluster.admin() as admin:
        assert "orders" in await admin.topics()
    async with aerobee_cluster.pull_consumer("puller") as consumer:
        await consumer.assign([result.queue])
        await consumer.seek(result.queue, 0)
        assert [message.body for message in await consumer.poll(5)] == [b"x"]


async def test_a_directory_that_was_given_stays_and_another_one_goes(tmp_path: Path) -> None:
    async with LocalCluster(directory=tmp_path):
        pass
    assert (tmp_path / "broker-a" / "commitlog").is_dir()
    async with LocalCluster() as cluster:
        directory = cluster.directory
        assert directory.is_dir()
    assert not directory.exists()


async def test_a_disk_that_others_filled_neither_refuses_messages_nor_deletes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """93 % used: a broker by its defaults refuses messages, and deletes the oldest file of its log."""
    looks: list[str] = []

    def usage(_disk: RealDisk, path: str) -> tuple[int, int]:
        looks.append(path)
        return 93, 100

    monkeypatch.setattr(RealDisk, "usage", usage)
    async with (
        LocalCluster(store_config={"mapped_file_size_commit_log": 65_536}) as cluster,
        cluster.producer() as producer,
    ):
        await cluster.create_topic("orders", 1)
        for number in range(6):
            await producer.send(Message("orders", bytes([number]) * 30_000))
        before = len(looks)
        await cluster.advance_clock(60)
        await wait_until(lambda: len(looks) > before)
        await producer.send(Message("orders", b"last"))
        assert (await receive(cluster, "orders", 7))[-1] == b"last"


async def test_a_start_that_fails_leaves_nothing_behind() -> None:
    cluster = LocalCluster(broker_config={"listen_port": 0, "namesrv_addr": "nonsense"})
    with pytest.raises(AerobeeError, match="namesrvAddr"):
        await cluster.start()
    with pytest.raises(UsageError, match="not started"):
        _ = cluster.directory
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not [name for name in names if "nameserver" in name or "broker" in name]


async def test_wrong_use_says_so(aerobee_cluster: LocalCluster) -> None:
    with pytest.raises(UsageError, match="started already"):
        await aerobee_cluster.start()
    with pytest.raises(UsageError, match="runs already"):
        await aerobee_cluster.start_broker(0)
    with pytest.raises(UsageError, match="at least one nameserver"):
        LocalCluster(nameservers=0)
    with pytest.raises(UsageError, match="not started"):
        ThreadedCluster().create_topic("orders")


PLUGIN_TESTS = """
import asyncio
import sys


async def test_async(aerobee_cluster):
    assert type(aerobee_cluster).__name__ == "LocalCluster"


def test_sync(aerobee_cluster):
    assert type(aerobee_cluster).__name__ == "ThreadedCluster"


async def test_session(aerobee_cluster_session):
    assert len(aerobee_cluster_session.broker_names) == 2
"""
OPTIONS = """
import pytest


@pytest.fixture(scope="session")
def aerobee_cluster_options():
    return {"brokers": 2}
"""


async def run_pytest(directory: Path, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments),
        cwd=directory,
        env={"PYTHONPATH": REPOSITORY, "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(300):
            output, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.parametrize("mode", ["auto", "strict"])
async def test_the_plugin_works_in_both_modes_of_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    header = "" if mode == "auto" else "import pytest\npytestmark = pytest.mark.asyncio\n"
    (tmp_path / "test_it.py").write_text(header + PLUGIN_TESTS)
    (tmp_path / "conftest.py").write_text(OPTIONS)
    status, output = await run_pytest(tmp_path, "-o", f"asyncio_mode={mode}", "-W", "ignore")
    assert "3 passed" in output, output
    assert status == 0


async def test_the_plugin_does_without_pytest_asyncio(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_sync(aerobee_cluster):\n    aerobee_cluster.create_topic('orders')\n"
    )
    status, output = await run_pytest(tmp_path, "-p", "no:asyncio")
    assert "1 passed" in output, output
    assert status == 0


async def test_a_run_that_does_not_use_the_plugin_loads_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n"
        "    assert 'aerobee.testing.plugin' in sys.modules\n"
        "    heavy = ('aerobee.broker', 'aerobee.client', 'aerobee.remoting', 'orjson')\n"
        "    assert not [name for name in heavy if name in sys.modules]\n"
    )
    status, output = await run_pytest(tmp_path, "-p", "no:asyncio")
    assert status == 0, output


async def test_a_consumer_says_once_that_its_broker_is_lost_and_once_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pulls, heartbeats, commits and the rebalance all fail meanwhile."""
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=4)
        seen: list[bytes] = []
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)

        async def send(body: bytes) -> None:
            async with cluster.producer() as producer:
                await producer.send(Message("orders", body))

        async with cluster.push_consumer("G", {"orders": "*"}, lambda m: seen.append(m.body), config=config):
            await send(b"before")
            await wait_until(lambda: seen == [b"before"])
            caplog.clear()
            await cluster.kill_broker()
            await cluster.advance_clock(60)
            await cluster.start_broker()
            await cluster.advance_clock(40)
            await send(b"after")
            await wait_until(lambda: b"after" in seen)
        lines = [
            record.getMessage()
            for record in caplog.records
            if record.levelno >= logging.WARNING and record.name.startswith("aerobee.client")
        ]
        assert [" is lost: " in lines[0], " is back after " in lines[-1], len(lines)] == [True, True, 2], (
            lines
        )


async def test_a_test_that_holds_the_event_loop_is_served_late_not_refused():
    async with LocalCluster() as cluster, cluster.producer() as producer:
        await cluster.create_topic("held")
        broker = cluster.broker()
        await producer.send(Message("held", b"0"))
        broker.overload.observe(20_000, 0)
        broker.overload.observe(20_000, 0)
        assert broker.overload.reason == ""
        assert (await producer.send(Message("held", b"1"))).status.name == "SEND_OK"
        broker.overload.observe(31_000, 0)
        broker.overload.observe(31_000, 0)
        assert "30000 ms" in broker.overload.reason
