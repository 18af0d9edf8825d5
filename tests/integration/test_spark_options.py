"""What each option does at a real cluster, as far as it is seen without Spark; and that no option stands in the page without a test."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.admin.admin import Admin
from aerobee.client.sync import SyncProducer
from aerobee.errors import AerobeeError, ConfigError, UsageError
from aerobee.message import Message, MessageQueue
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.spark.cluster_view import ClusterView
from aerobee.spark.options import SourceOptions, parse_source_options
from aerobee.spark.range_reader import ReadPlan, read_range
from aerobee.spark.ranges import QueueRange
from aerobee.spark.row_sender import OutgoingRow, RowSender, SinkError
from aerobee.spark.sink_options import parse_sink_options
from aerobee.testing.threaded_cluster import ThreadedCluster
from tests.integration.access_cluster import USERS, client, running, sent
from tests.integration.access_cluster import Cluster as Secured
from tests.integration.secured_cluster import Secured as Tls

ROOT = Path(__file__).resolve().parents[2]
ROWS = 300
QUEUE = MessageQueue("orders", "broker-a", 0)
names = (f"topic-{number}" for number in count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(brokers=2, broker_config={"autoCreateTopicEnable": "false"}) as cluster:
        for topic in ("orders", "orders-eu", "refunds"):
            cluster.create_topic(topic, 2)
        with cluster.producer() as producer:
            for number in range(ROWS):
                producer.send(Message("orders", b"%0100d" % number), queue=QUEUE)
        yield cluster


def source(cluster: ThreadedCluster, *, subscribe: str = "orders", **more: str) -> SourceOptions:
    chosen = {} if "subscribePattern" in more or "assign" in more else {"subscribe": subscribe}
    return parse_source_options(
        {"nameservers": cluster.nameserver_address, **chosen, **more}, streaming=False
    )


def batches(options: SourceOptions) -> list[int]:
    """Rows of each batch of a whole queue."""
    plan = ReadPlan(options, ("value", "queue_offset"))
    return [each.count for each in read_range(plan, QueueRange(QUEUE, 0, ROWS))]


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The fields of each pull, and under "others" how many were on their way when it left."""
    seen: list[dict[str, str]] = []
    running = 0
    invoke = RemotingClient.invoke

    async def watched(self: RemotingClient, address: str, command: Any, **more: Any) -> Any:
        nonlocal running
        if command.code != RequestCode.PULL_MESSAGE.value:
            return await invoke(self, address, command, **more)
        seen.append({**command.ext, "others": str(running)})
        running += 1
        try:
            return await invoke(self, address, command, **more)
        finally:
            running -= 1

    monkeypatch.setattr(RemotingClient, "invoke", watched)
    return seen


def test_pull_batch_size_is_what_one_pull_asks_for(cluster: ThreadedCluster, pulls: list[dict[str, str]]):
    assert sum(batches(source(cluster, pullBatchSize="10"))) == ROWS
    assert {each["maxMsgNums"] for each in pulls} == {"10"}
    assert len(pulls) == ROWS / 10


def test_pulls_in_flight_are_at_most_so_many(cluster: ThreadedCluster, pulls: list[dict[str, str]]):
    for most in (1, 4):
        pulls.clear()
        assert sum(batches(source(cluster, pullBatchSize="10", pullsInFlight=str(most)))) == ROWS
        assert max(int(each["others"]) for each in pulls) == most - 1


def test_batch_bytes_bound_a_batch(cluster: ThreadedCluster):
    assert len(batches(source(cluster))) == 1
    few = batches(source(cluster, batchBytes="2048", pullBatchSize="8"))
    assert sum(few) == ROWS
    # A pull's answer is laid out whole: one of 8 rows of 100 bytes fills the batch after the one that did not.
    assert max(few) <= 2048 / 100 + 8 + 8


@pytest.mark.parametrize(
    ("options", "group"),
    [({}, "aerobee-spark-source"), ({"groupIdPrefix": "etl"}, "etl-source"), ({"group": "jobs"}, "jobs")],
)
def test_the_group_of_pulls(
    cluster: ThreadedCluster, pulls: list[dict[str, str]], options: dict[str, str], group: str
):
    batches(source(cluster, **options))
    assert {each["consumerGroup"] for each in pulls} == {group}
    assert {each["commitOffset"] for each in pulls} == {"0"}


def test_topics_by_name_by_pattern_and_queues_one_by_one(cluster: ThreadedCluster):
    def queues(**more: str) -> list[str]:
        with ClusterView(source(cluster, **more)) as view:
            return [f"{each.topic}/{each.broker_name}:{each.queue_id}" for each in view.queues()]

    assert {each.partition("/")[0] for each in queues(subscribe="orders,refunds")} == {"orders", "refunds"}
    assert {each.partition("/")[0] for each in queues(subscribePattern="orders.*")} == {"orders", "orders-eu"}
    assert queues(subscribePattern="order") == [], "the whole name has to match"
    assert not any("SCHEDULE" in each or "RMQ_SYS" in each for each in queues(subscribePattern=".*"))
    assert queues(assign='{"orders": ["broker-b:1", "broker-a:0"]}') == [
        "orders/broker-a:0",
        "orders/broker-b:1",
    ]
    with pytest.raises(UsageError, match="topic orders has no queue broker-a:7"):
        queues(assign='{"orders": ["broker-a:7"]}')


def test_the_driver_asks_so_often_again_and_a_task_for_so_long():
    """No server listens there: each try fails immediately, so that the times between them are what is left."""
    unreachable = {"nameservers": "127.0.0.1:1", "subscribe": "orders"}

    def seconds(work: Callable[[], object]) -> float:
        begun = time.monotonic()
        with pytest.raises(AerobeeError):
            work()
        return time.monotonic() - begun

    patient = {"fetchOffset.numRetries": "4", "fetchOffset.retryIntervalMs": "200"}
    with ClusterView(parse_source_options({**unreachable, **patient}, streaming=False)) as view:
        assert seconds(view.queues) >= 0.8
    options = parse_source_options({**unreachable, "pollTimeoutMs": "700"}, streaming=False)
    assert seconds(lambda: batches(options)) >= 0.7


def test_a_setting_of_the_client_is_checked_where_it_is_made(cluster: ThreadedCluster):
    with pytest.raises(ConfigError, match=r"option rocketmq\.requesttimeouts is 'soon': it must be a number"):
        source(cluster, **{"rocketmq.requestTimeoutS": "soon"})
    assert source(cluster, **{"rocketmq.requestTimeoutS": "7"}).client.request_timeout_s == 7


async def test_keys_of_a_user_sign_the_reads_of_driver_and_tasks(tmp_path: Path):
    async with running(Secured(tmp_path, USERS)) as secured:
        async with Admin(secured.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
        assert await sent(secured, "orders", client("root")) == ""
        base = {"nameservers": secured.server.address, "subscribe": "orders", "fetchOffset.numRetries": "0"}

        def rows(**keys: str) -> int:
            options = parse_source_options({**base, **keys}, streaming=False)
            with ClusterView(options) as view:
                (bounds,) = view.bounds(view.queues()).values()
            plan = ReadPlan(options, ("value",))
            return sum(each.count for each in read_range(plan, QueueRange(QUEUE, bounds.begin, bounds.end)))

        keys = {"rocketmq.accessKey": "root", "rocketmq.secretKey": "rootsecret"}
        assert await asyncio.to_thread(rows, **keys) == 1
        with pytest.raises(AerobeeError, match="signature"):
            await asyncio.to_thread(rows, **{**keys, "rocketmq.secretKey": "another"})
        with pytest.raises(AerobeeError, match="not signed"):
            await asyncio.to_thread(rows)


def test_a_certificate_is_shown_and_the_brokers_is_checked(secured: Tls):
    base = {"nameservers": secured.nameserver, "subscribe": "orders", "fetchOffset.numRetries": "0"}
    files = {
        "rocketmq.tls": "true",
        "rocketmq.tlsCaFile": str(secured.authority.cert_path),
        "rocketmq.tlsCertFile": str(secured.client.cert_path),
        "rocketmq.tlsKeyFile": str(secured.client.key_path),
    }
    options = parse_source_options({**base, **files}, streaming=False)
    with SyncProducer(secured.nameserver, client=options.client) as producer:
        producer.send(Message("orders", b"x"))
    with ClusterView(options) as view:
        bounds = view.bounds(view.queues())
    found = [
        sum(
            each.count
            for each in read_range(ReadPlan(options, ("value",)), QueueRange(queue, has.begin, has.end))
        )
        for queue, has in bounds.items()
    ]
    assert sum(found) == 1
    with ClusterView(parse_source_options(base, streaming=False)) as view, pytest.raises(AerobeeError):
        view.bounds(bounds)


# The sink


async def write(cluster: ThreadedCluster, topic: str, rows: int, **more: str) -> tuple[int, int]:
    """(rows sent, the most requests at a time) of rows that each need a request."""
    options = parse_sink_options({"nameservers": cluster.nameserver_address, **more})
    most = 0
    async with RowSender(options) as sender:
        for number in range(rows):
            row = OutgoingRow(number, Message(topic, b"x"), message_group=f"k{number}", dedup_key="")
            await sender.add([row])
            most = max(most, len(sender._requests))
        sent = await sender.finish()
    return sent.row_count, most


@pytest.mark.parametrize("most", [1, 5])
async def test_so_many_requests_of_a_task_are_in_flight(cluster: ThreadedCluster, most: int):
    assert await write(cluster, "refunds", 40, maxInFlight=str(most)) == (40, most)


async def test_a_row_is_tried_for_so_long_and_then_named(cluster: ThreadedCluster):
    """All brokers are away, and come back within one of the two times."""
    with ThreadedCluster() as own:
        own.create_topic("t", 1)
        begun = time.monotonic()
        own.stop_broker(0)
        with pytest.raises(SinkError, match="row 0 of the task, for topic t"):
            await write(own, "t", 1, sendTimeout="1s")
        assert time.monotonic() - begun >= 1
        waiting = asyncio.create_task(write(own, "t", 1, sendTimeout="60s"))
        await asyncio.to_thread(own.start_broker, 0)
        assert (await waiting)[0] == 1


async def test_the_producers_group(cluster: ThreadedCluster):
    assert parse_sink_options({"nameservers": "h:1", "topic": "t"}).group == "aerobee-spark-sink"
    options = parse_sink_options({"nameservers": cluster.nameserver_address, "group": "loaders"})
    async with RowSender(options) as sender:
        assert sender._producer.group == "loaders"


# The page


def documented(heading: str) -> list[str]:
    """The options of one table of docs/spark.md."""
    text = (
        (ROOT / "docs" / "spark.md").read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    )
    table = text.partition("| option |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`([\w.]+)\*?`", cell)]


@pytest.mark.parametrize("heading", ["## Options of the source", "## The sink"])
def test_each_option_of_the_page_is_named_by_a_test(heading: str):
    tests = [
        *ROOT.glob("tests/spark/test_*.py"),
        *ROOT.glob("tests/unit/spark/test_*.py"),
        Path(__file__),
    ]
    text = "\n".join(each.read_text(encoding="utf-8") for each in tests)
    wanted = documented(heading)
    assert len(wanted) >= 6
    missing = [name for name in wanted if not re.search(rf"\b{re.escape(name)}", text)]
    assert not missing, f"no test names {missing}"
