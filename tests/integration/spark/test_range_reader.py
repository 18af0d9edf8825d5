"""A driver's view and an executor's reads at real brokers, without Spark: what is read, what is said when it is gone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.client.session.route_cache import RouteCache
from aerobee.errors import RouteError, UsageError
from aerobee.message import Message, MessageQueue
from aerobee.spark.cluster_view import ClusterView
from aerobee.spark.data_loss import DataLost
from aerobee.spark.options import SourceOptions, parse_source_options
from aerobee.spark.range_reader import ReadPlan, read_range
from aerobee.spark.ranges import QueueRange
from aerobee.testing.threaded_cluster import ThreadedCluster

COUNT = 250


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(brokers=2, broker_config={"enable_property_filter": True}) as cluster:
        cluster.create_topic("orders", 2)
        with cluster.producer() as producer:
            for number in range(COUNT):
                queue = MessageQueue("orders", "broker-a", number % 2)
                producer.send(Message("orders", b"%d" % number, tag="ABC"[number % 3]), queue=queue)
        yield cluster


def options(cluster: ThreadedCluster, **more: str) -> SourceOptions:
    base = {"nameservers": cluster.nameserver_address, "subscribe": "orders", "pullBatchSize": "16"}
    return parse_source_options({**base, **more}, streaming=False)


def bodies(wanted: SourceOptions, part: QueueRange, tags: frozenset[str] | None = None) -> list[bytes]:
    found: list[bytes] = []
    for batch in read_range(ReadPlan(wanted, ("value", "queue_offset"), tags), part):
        offsets, data, _ = batch.columns["value"]
        ends = struct.unpack(f"<{batch.count + 1}i", offsets)
        found += [data[ends[row] : ends[row + 1]] for row in range(batch.count)]
    return found


def sent(queue_id: int, tags: str = "ABC") -> list[bytes]:
    return [b"%d" % n for n in range(COUNT) if n % 2 == queue_id and "ABC"[n % 3] in tags]


def test_a_view_tells_queues_bounds_and_offsets_by_time(cluster: ThreadedCluster):
    with ClusterView(options(cluster)) as view:
        queues = view.queues()
        assert [(queue.broker_name, queue.queue_id) for queue in queues] == [
            ("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1),
        ]  # fmt: skip
        bounds = view.bounds(queues)
        assert [(has.begin, has.end) for has in bounds.values()] == [(0, 125), (0, 125), (0, 0), (0, 0)]
        assert view.offsets_at(dict.fromkeys(queues, 0)) == dict.fromkeys(queues, 0)
        assert view.offsets_at(dict.fromkeys(queues, 2**42)) == {queue: bounds[queue].end for queue in queues}


def test_patterns_and_assignments_choose_queues(cluster: ThreadedCluster):
    base = {"nameservers": cluster.nameserver_address}
    with ClusterView(parse_source_options({**base, "subscribePattern": "ord.*"}, streaming=False)) as view:
        assert {queue.topic for queue in view.queues()} == {"orders"}
    assign = {**base, "assign": '{"orders": ["broker-b:1"]}'}
    with ClusterView(parse_source_options(assign, streaming=False)) as view:
        assert view.queues() == (MessageQueue("orders", "broker-b", 1),)
    wrong = {**base, "assign": '{"orders": ["broker-b:9"]}'}
    with (
        ClusterView(parse_source_options(wrong, streaming=False)) as view,
        pytest.raises(UsageError, match="no queue broker-b:9"),
    ):
        view.queues()
    with (
        ClusterView(parse_source_options({**base, "subscribe": "absent"}, streaming=False)) as view,
        pytest.raises(UsageError, match="does not exist"),
    ):
        view.queues()


@pytest.mark.parametrize(("begin", "end"), [(0, 125), (3, 4), (17, 90), (5, 5)])
def test_a_range_is_read_whole_in_order_and_again_the_same(cluster: ThreadedCluster, begin: int, end: int):
    part = QueueRange(MessageQueue("orders", "broker-a", 1), begin, end)
    wanted = options(cluster, pullsInFlight="3")
    assert bodies(wanted, part) == sent(1)[begin:end]
    assert bodies(wanted, part) == sent(1)[begin:end]


def test_batches_are_bounded_by_bytes(cluster: ThreadedCluster):
    part = QueueRange(MessageQueue("orders", "broker-a", 0), 0, 125)
    plan = ReadPlan(options(cluster, batchBytes="1024", includeProperties="true"), ("value", "properties"))
    counts = [batch.count for batch in read_range(plan, part)]
    assert sum(counts) == 125
    assert len(counts) > 3


@pytest.mark.parametrize("more", [{"tags": "A || C"}, {"sql": "TAGS <> 'B'"}])
def test_expressions_are_the_brokers(cluster: ThreadedCluster, more: dict[str, str]):
    part = QueueRange(MessageQueue("orders", "broker-a", 0), 10, 100)
    wanted = sent(0, "AC")
    inside = [body for body in wanted if body in sent(0)[10:100]]
    assert bodies(options(cluster, **more), part) == inside


def test_pushed_tags_replace_no_expression(cluster: ThreadedCluster):
    part = QueueRange(MessageQueue("orders", "broker-a", 0), 0, 125)
    assert bodies(options(cluster), part, frozenset({"B"})) == sent(0, "B")


def test_an_end_that_the_queue_does_not_reach_is_a_loss(cluster: ThreadedCluster):
    part = QueueRange(MessageQueue("orders", "broker-a", 0), 120, 130)
    with pytest.raises(
        DataLost, match=r"broker-a:0 has lost offsets 125 to 129 \(5 messages\): the queue ends"
    ):
        bodies(options(cluster, pullBatchSize="1024"), part)
    assert bodies(options(cluster, failOnDataLoss="false"), part) == sent(0)[120:]


def test_progress_is_reported_under_a_group(cluster: ThreadedCluster):
    queue = MessageQueue("orders", "broker-a", 0)
    with ClusterView(options(cluster, group="jobs")) as view:
        view.commit({queue: 77})
    with cluster.admin() as admin:
        assert {move.queue: move.before for move in admin.offsets("jobs", "orders")}[queue] == 77


def test_a_broker_that_comes_back_is_waited_for():
    with ThreadedCluster(brokers=1) as cluster:
        cluster.create_topic("orders", 1)
        with cluster.producer() as producer:
            for number in range(60):
                producer.send(Message("orders", b"%d" % number))
        part = QueueRange(MessageQueue("orders", "broker-a", 0), 0, 60)
        plan = ReadPlan(
            options(cluster, batchBytes="1024", pullBatchSize="5", pullsInFlight="1"), ("value", "msg_id")
        )
        batches: Iterator[Any] = read_range(plan, part)
        assert sum(batch.count for batch in batches) == 60
        cluster.kill_broker()
        with pytest.raises(Exception, match=r"not registered|route|not exist"):
            list(read_range(ReadPlan(options(cluster, pollTimeoutMs="1"), ("value",)), part))
        cluster.start_broker()
        assert bodies(options(cluster), part) == [b"%d" % number for number in range(60)]


def test_a_slave_alone_is_read_and_tells_of_no_loss(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
):
    """The one broker there counts as a slave here: its master is not registered."""
    monkeypatch.setattr(RouteCache, "address_of", lambda *_: None)
    part = QueueRange(MessageQueue("orders", "broker-a", 0), 120, 125)
    assert bodies(options(cluster), part) == sent(0)[120:]
    for fails in ("true", "false"):
        wanted = options(cluster, failOnDataLoss=fails, pollTimeoutMs="1")
        with pytest.raises(RouteError, match="the master of broker broker-a is not registered"):
            bodies(wanted, QueueRange(part.queue, 120, 130))
    with ClusterView(options(cluster)) as view:
        assert not view.queue_bounds()[part.queue].is_masters
