"""Clients without asyncio: iteration, verdicts from any thread, the admin's calls, and a cluster's own clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee import (
    ConsumeFrom,
    ConsumerConfig,
    Message,
    RetryLater,
    SyncPushConsumer,
)
from aerobee.client import PullConsumerConfig
from aerobee.errors import UsageError
from aerobee.testing import ThreadedCluster
from aerobee.testing.plugin import marker_options

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(broker_config={"autoCreateTopicEnable": "false", "maxMessageSize": 1000}) as started:
        yield started


def fill(cluster: ThreadedCluster, topic: str, *bodies: bytes) -> None:
    cluster.create_topic(topic, queues=1)
    with cluster.producer() as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def test_messages_are_read_in_a_loop_and_acknowledged_by_its_next_step(cluster: ThreadedCluster) -> None:
    fill(cluster, "looped", b"1", b"2", b"3")
    with SyncPushConsumer(
        cluster.nameserver_address, "loopers", subscriptions=["looped"], config=FIRST
    ) as consumer:
        for message in consumer:
            if message.body == b"3":
                break
    with cluster.admin() as admin:
        assert admin.consumer_progress("loopers").lag == 1  # the one at which the loop was left


def test_verdicts_reach_the_consumer_from_the_callers_thread(cluster: ThreadedCluster) -> None:
    fill(cluster, "judged", b"again", b"dead", b"done")
    seen: list[tuple[bytes, int]] = []
    with cluster.push_consumer("judges", ["judged"], config=FIRST) as consumer:
        for message in consumer:
            seen.append((message.body, message.reconsume_times))
            if message.body == b"dead":
                message.reject("no")
            elif not message.reconsume_times and message.body == b"again":
                message.retry(delay_level=1)
            else:
                message.ack()
            if len(seen) == 3:
                cluster.advance_clock(2)  # the consumer lives on the cluster's clock, its retry as well
            if len(seen) == 4:
                break
    assert sorted(seen) == [(b"again", 0), (b"again", 1), (b"dead", 0), (b"done", 0)]


def test_blocking_consumer_may_have_a_handler(cluster: ThreadedCluster) -> None:
    fill(cluster, "handled", b"1", b"2")
    done = threading.Event()

    def handle(message: object) -> None:
        if done.is_set():
            raise RetryLater
        done.set()

    with cluster.push_consumer("handlers", {"handled": "*"}, handle, config=FIRST) as consumer:
        assert done.wait(120)
        assert {queue.topic for queue in consumer.owned} >= {"handled"}


def test_pull_consumer_is_iterated_and_tells_where_it_is(cluster: ThreadedCluster) -> None:
    fill(cluster, "pulled", b"1", b"2")
    config = PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
    with cluster.pull_consumer("pullers", config=config) as consumer:
        consumer.subscribe("pulled")
        (queue,) = consumer.assigned
        bodies = []
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 2:
                break
        assert bodies == [b"1", b"2"]
        assert (consumer.position(queue), consumer.begin_offset(queue), consumer.end_offset(queue)) == (
            2,
            0,
            2,
        )


def test_admin_has_the_calls_of_the_asynchronous_one(cluster: ThreadedCluster) -> None:
    cluster.create_topic("seen", queues=2)
    with cluster.admin() as admin:
        assert "seen" in admin.topics()
        assert len(admin.topic_stats("seen")) == 2
        assert "create_topic" in dir(admin)
        with pytest.raises(AttributeError, match="nothing"):
            admin.nothing()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"broker_config": {"autoCreateTopicEnabel": "false"}}, "did you mean 'autoCreateTopicEnable'"),
        ({"store_config": {"brokerName": "a"}}, "store_config has no key 'brokerName'"),
        ({"broker_config": {"autoCreateTopicEnable": "maybe"}}, "autoCreateTopicEnable is 'maybe'"),
        ({"brokers": "2"}, "brokers is '2': it must be a whole number"),
    ],
)
def test_settings_of_a_test_cluster_are_checked(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        ThreadedCluster(**options)


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        (pytest.mark.aerobee_cluster(broker=2), "has no option broker; it takes brokers, nameservers"),
        (pytest.mark.aerobee_cluster(2), "takes its options by name"),
    ],
)
def test_misspelt_options_of_the_marker_are_named(
    marker: pytest.MarkDecorator, said: str, request: pytest.FixtureRequest
) -> None:
    request.node.add_marker(marker)
    with pytest.raises(UsageError, match=said):
        marker_options(request)


def test_settings_of_a_test_cluster_take_the_keys_of_rocketmq(cluster: ThreadedCluster) -> None:
    with cluster.admin() as admin:
        config = admin.broker_config(cluster.broker_addresses[0])
    assert (config["autoCreateTopicEnable"], config["maxMessageSize"]) == ("false", "1000")
