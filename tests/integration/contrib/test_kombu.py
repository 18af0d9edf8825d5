"""Kombu without Celery over the transport, in this process."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from kombu.exceptions import ChannelError

import aerobee.contrib.celery  # noqa: F401 - registers aerobee://
from aerobee import Message
from aerobee.errors import ConnectFailed, UsageError
from aerobee.testing import ThreadedCluster

WITHIN_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as found:
        yield found


def connect(cluster: ThreadedCluster, virtual_host: str = "", **options: Any) -> Any:
    url = f"aerobee://{cluster.nameserver_address}/{virtual_host}"
    return kombu.Connection(url, transport_options={"queue_count": 1, **options})


@pytest.fixture
def connection(cluster: ThreadedCluster) -> Iterator[Any]:
    with connect(cluster) as found:
        yield found


def publish(connection: Any, queue: Any, body: Any, **options: Any) -> None:
    kombu.Producer(connection).publish(
        body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
    )


def receive(connection: Any, queue: Any, count: int, **options: Any) -> list[Any]:
    """`count` messages of a queue, acknowledged."""
    found: list[Any] = []

    def remember(_body: Any, message: Any) -> None:
        found.append(message)
        message.ack()

    with kombu.Consumer(connection, [queue], callbacks=[remember], **options):
        while len(found) < count:
            connection.drain_events(timeout=WITHIN_S)
    return found


def named(name: str, **options: Any) -> Any:
    return kombu.Queue(name, kombu.Exchange(name, "direct"), name, **options)


def test_message_arrives_whole(connection: Any) -> None:
    queue = named("whole")
    publish(connection, queue, {"n": 1}, headers={"h": "v"}, priority=3)
    (message,) = receive(connection, queue, 1)
    assert (message.payload, message.headers, message.content_type) == (
        {"n": 1},
        {"h": "v"},
        "application/json",
    )
    assert message.delivery_info["routing_key"] == "whole"
    assert message.delivery_info["redelivered"] is False


def test_names_that_topics_refuse(connection: Any) -> None:
    for name in ("a.b@c:d", "ü", "x" * 300):
        publish(connection, named(name), name)
        assert receive(connection, named(name), 1)[0].payload == name


def test_virtual_hosts_are_apart(cluster: ThreadedCluster, connection: Any) -> None:
    queue = named("apart")
    with connect(cluster, "other") as other:
        publish(other, queue, "other's")
        publish(connection, queue, "ours")
        assert receive(connection, queue, 1)[0].payload == "ours"
        assert receive(other, queue, 1)[0].payload == "other's"


def test_acknowledged_messages_stay_away_and_others_return(cluster: ThreadedCluster) -> None:
    queue = named("returning")
    with connect(cluster, visibility_timeout=3) as first:
        publish(first, queue, "acked")
        publish(first, queue, "kept")
        with first.channel() as channel:
            bound = queue(channel)
            for _ in range(2):
                message = bound.get()
                if message.payload == "acked":
                    message.ack()
    with connect(cluster) as second:
        (message,) = receive(second, queue, 1)
        assert message.payload == "kept"
        assert second.default_channel.queue_declare("returning", passive=True).message_count == 0


def test_prefetch_count_bounds_deliveries(connection: Any) -> None:
    queue, held = named("prefetch"), []
    for n in range(4):
        publish(connection, queue, n)
    with kombu.Consumer(
        connection, [queue], callbacks=[lambda _, message: held.append(message)], prefetch_count=2
    ):
        while len(held) < 2:
            connection.drain_events(timeout=WITHIN_S)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.5)
        held[0].ack()
        while len(held) < 3:
            connection.drain_events(timeout=WITHIN_S)
        for message in held[1:]:
            message.ack()
        while len(held) < 4:
            connection.drain_events(timeout=WITHIN_S)
        held[3].ack()
    assert sorted(message.payload for message in held) == [0, 1, 2, 3]


def test_cancelled_consumer_takes_no_message_with_it(connection: Any) -> None:
    """The pop that is pending at the broker still gets a message, which then goes back immediately."""
    queue, found = named("cancelled"), []
    publish(connection, queue, 0)
    assert receive(connection, queue, 1)[0].payload == 0
    publish(connection, queue, 1)
    with kombu.Consumer(
        connection, [queue], callbacks=[lambda body, message: (message.ack(), found.append(body))]
    ):
        while not found:
            connection.drain_events(timeout=WITHIN_S)  # a third of the visibility timeout
    assert found == [1]


def test_closed_connection_takes_no_message_with_it(cluster: ThreadedCluster, connection: Any) -> None:
    queue = named("closed")
    with connect(cluster) as first:
        publish(first, queue, 0)
        assert receive(first, queue, 1)[0].payload == 0
    publish(connection, queue, 1)
    assert receive(connection, queue, 1)[0].payload == 1


def test_requeued_message_is_redelivered(connection: Any) -> None:
    queue, seen = named("requeue"), []

    def requeue_once(_body: Any, message: Any) -> None:
        seen.append(message.delivery_info["redelivered"])
        message.ack() if len(seen) > 1 else message.requeue()

    publish(connection, queue, "again")
    with kombu.Consumer(connection, [queue], callbacks=[requeue_once]):
        while len(seen) < 2:
            connection.drain_events(timeout=WITHIN_S)
    assert seen == [False, True]


def test_rejected_message_is_a_dead_letter(cluster: ThreadedCluster, connection: Any) -> None:
    queue, done = named("rejects"), []
    publish(connection, queue, "bad")
    with kombu.Consumer(
        connection, [queue], callbacks=[lambda _, message: (message.reject(), done.append(message))]
    ):
        while not done:
            connection.drain_events(timeout=WITHIN_S)
    connection.default_channel.close()
    with cluster.pull_consumer("reader") as reader:
        reader.assign(reader.queues("%DLQ%rejects"))
        for each in reader.assigned:
            reader.seek_to_begin(each)
        assert len(reader.poll(WITHIN_S)) == 1


def test_foreign_message_is_a_dead_letter(cluster: ThreadedCluster, connection: Any) -> None:
    queue = named("foreign")
    publish(connection, queue, "ours")
    with cluster.producer() as producer:
        producer.send(Message("foreign", b"not of Kombu"))
    assert receive(connection, queue, 1)[0].payload == "ours"
    with pytest.raises(socket.timeout), kombu.Consumer(connection, [queue], callbacks=[lambda *_: None]):
        connection.drain_events(timeout=1)


def test_eta_waits_at_the_broker(connection: Any) -> None:
    queue, begin = named("eta"), time.time()
    eta = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(begin + 4))
    publish(connection, queue, "later", headers={"eta": eta})
    publish(connection, queue, "now")
    first, second = receive(connection, queue, 2)
    assert (first.payload, second.payload) == ("now", "later")
    assert time.time() >= begin + 2


def test_far_eta_is_reached_in_steps(cluster: ThreadedCluster) -> None:
    queue, begin = named("far"), time.time()
    eta = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(begin + 5))
    with connect(cluster, timer_max_s=1.5) as connection:
        publish(connection, queue, "far", headers={"eta": eta})
        assert receive(connection, queue, 1)[0].payload == "far"
    assert time.time() >= begin + 3


def test_higher_priority_comes_first(connection: Any) -> None:
    queue = named("ranks", max_priority=9)
    for priority in (1, 7, 4):
        publish(connection, queue, priority, priority=priority)
    assert [message.payload for message in receive(connection, queue, 3)] == [7, 4, 1]


def test_fanout_reaches_each_transient_queue_of_any_process(cluster: ThreadedCluster) -> None:
    exchange = kombu.Exchange("news", "fanout", durable=False)
    with connect(cluster) as here, connect(cluster) as there, connect(cluster) as sender:
        queues = [kombu.Queue(f"news.{n}", exchange, auto_delete=True) for n in range(2)]
        bound = [queues[0](here.default_channel), queues[1](there.default_channel)]
        for each in bound:
            each.declare()
        kombu.Producer(sender).publish("hello", exchange=exchange, declare=[exchange])
        for connection, queue in zip((here, there), queues, strict=True):
            assert receive(connection, queue, 1, no_ack=True)[0].payload == "hello"


def test_topic_exchange_selects_by_routing_key(connection: Any) -> None:
    exchange = kombu.Exchange("logs", "topic", durable=False)
    queue = kombu.Queue("logs.errors", exchange, "*.error", auto_delete=True)
    queue(connection.default_channel).declare()
    producer = kombu.Producer(connection)
    for key in ("disk.info", "disk.error", "net.error"):
        producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])
    assert [each.payload for each in receive(connection, queue, 2, no_ack=True)] == [
        "disk.error",
        "net.error",
    ]


def test_broker_restart_loses_nothing() -> None:
    queue = named("restarted")
    with ThreadedCluster() as cluster, connect(cluster, visibility_timeout=3) as connection:
        publish(connection, queue, "before")
        found: list[Any] = []
        with kombu.Consumer(connection, [queue], callbacks=[lambda _, message: found.append(message)]):
            while not found:
                connection.drain_events(timeout=WITHIN_S)
            cluster.kill_broker()
            found[0].ack()  # in the background, until the broker is back
            cluster.start_broker()
            publish(connection, queue, "after")
            while len(found) < 2:
                connection.drain_events(timeout=WITHIN_S)
            found[1].ack()
        assert [message.payload for message in found] == ["before", "after"]


def test_messages_of_several_brokers_arrive_once() -> None:
    queue, ranked = named("spread"), named("spread-ranks", max_priority=3)
    with ThreadedCluster(brokers=2) as cluster, connect(cluster) as connection:
        soon = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 3))
        for n in range(20):
            publish(connection, queue, n)
            publish(connection, ranked, n, priority=n % 4, headers={"eta": soon})
        for each in (queue, ranked):
            found = receive(connection, each, 20)
            assert sorted(message.payload for message in found) == list(range(20))
            assert not any(message.delivery_info["redelivered"] for message in found)


def test_size_and_purge(connection: Any) -> None:
    queue = named("purged")
    for n in range(40):
        publish(connection, queue, n)
    channel = connection.default_channel
    assert channel.queue_declare("purged", passive=True).message_count == 40
    assert queue(channel).purge() == 40
    assert channel.queue_declare("purged", passive=True).message_count == 0


def test_deleted_queue_is_gone(connection: Any) -> None:
    queue = named("deleted")
    publish(connection, queue, "x")
    channel = connection.default_channel
    queue(channel).delete()
    with pytest.raises(ChannelError, match="no queue 'deleted'"):
        channel.queue_declare("deleted", passive=True)


def test_missing_topic_is_refused_without_create_topics(cluster: ThreadedCluster) -> None:
    with (
        connect(cluster, create_topics=False) as connection,
        pytest.raises(UsageError, match="aerobee topic create absent"),
    ):
        publish(connection, named("absent"), "x")


def test_expired_message_is_dropped(connection: Any) -> None:
    queue = named("expiring")
    publish(connection, queue, "old", expiration=0.05)
    time.sleep(0.1)
    publish(connection, queue, "new")
    assert receive(connection, queue, 1)[0].payload == "new"


def test_unreachable_cluster_is_a_connection_error() -> None:
    connection = kombu.Connection("aerobee://127.0.0.1:1/")
    with pytest.raises(ConnectFailed):
        connection.connect()
    assert issubclass(ConnectFailed, connection.connection_errors)


def test_waiting_consumer_uses_no_cpu(connection: Any) -> None:
    """A wait of a second costs less than a tenth of it, broker included."""
    queue = named("quiet")
    with kombu.Consumer(connection, [queue], callbacks=[lambda *_: None]):
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.5)
        begin = time.thread_time()
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=1)
        assert time.thread_time() - begin < 0.1
