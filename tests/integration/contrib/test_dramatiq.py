"""dramatiq's workers over a cluster, in this process, and what becomes of messages when something fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound

from aerobee.contrib.dramatiq import AerobeeBroker
from aerobee.message import Message
from aerobee.testing import ThreadedCluster
from tests.integration.contrib.celery_worker import until
from tests.integration.contrib.dramatiq_scenario import run_killed_worker

WITHIN_MS = 60_000
DEAD_LETTERS = "%DLQ%v-default"


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as cluster:
        yield cluster


@pytest.fixture
def broker(cluster: ThreadedCluster) -> Iterator[AerobeeBroker]:
    found = broker_at(cluster)
    yield found
    found.close()


def broker_at(cluster: ThreadedCluster, **options: Any) -> AerobeeBroker:
    options = {"namespace": "v", "queue_count": 2, "invisible_s": 3, "max_redeliveries": 2, **options}
    return AerobeeBroker(cluster.nameserver_address, **options)


@contextmanager
def working(broker: AerobeeBroker, threads: int = 4) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def dead_letter_count(cluster: ThreadedCluster) -> int:
    return cluster.cluster.broker().store.max_offset(DEAD_LETTERS, 0)


def test_actors_get_their_messages(broker: AerobeeBroker) -> None:
    database: dict[str, int] = {}

    @dramatiq.actor(broker=broker)
    def put(key: str, value: int) -> None:
        database[key] = value

    for number in range(100):
        put.send(f"key-{number}", number)
    with working(broker) as worker:
        broker.join("default", timeout=WITHIN_MS)
        worker.join()
    assert len(database) == 100


def test_queues_of_actors_are_apart(broker: AerobeeBroker) -> None:
    seen: list[str] = []
    for name in ("a.b", "c"):
        dramatiq.actor(lambda text: seen.append(text), actor_name=name, queue_name=name, broker=broker).send(
            name
        )
    with working(broker):
        for name in ("a.b", "c"):
            broker.join(name, timeout=WITHIN_MS)
    assert sorted(seen) == ["a.b", "c"]


def test_failed_actor_is_retried(broker: AerobeeBroker) -> None:
    tries: list[int] = []

    @dramatiq.actor(broker=broker, min_backoff=10, max_backoff=100, max_retries=5)
    def fail() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("as wanted")

    fail.send()
    with working(broker):
        broker.join("default", timeout=WITHIN_MS)
    assert len(tries) == 3


def test_delayed_message_waits_at_the_broker(broker: AerobeeBroker) -> None:
    at: list[float] = []
    actor = dramatiq.actor(lambda: at.append(time.time()), actor_name="now", broker=broker)
    begin = time.time()
    actor.send_with_options(delay=1_500)
    with working(broker):
        broker.join("default", timeout=WITHIN_MS)
    assert at[0] >= begin + 1.5


def test_far_eta_is_reached_in_steps(cluster: ThreadedCluster) -> None:
    broker, at = broker_at(cluster, timer_max_s=0.5), []
    actor = dramatiq.actor(lambda: at.append(time.time()), actor_name="now", broker=broker)
    begin = time.time()
    actor.send_with_options(delay=2_500)
    with working(broker):
        until(lambda: bool(at), "the message is processed")
    broker.close()
    assert at[0] >= begin + 2.5


def test_rejected_unknown_and_foreign_messages_are_dead_letters(
    cluster: ThreadedCluster, broker: AerobeeBroker
) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    def fail() -> None:
        raise ValueError("as wanted")

    fail.send()
    broker.enqueue(fail.message().copy(actor_name="unknown"))
    with cluster.producer() as producer:
        producer.send(Message("v-default", b"foreign"))
    with working(broker):
        until(lambda: dead_letter_count(cluster) == 3, "three dead letters")


def test_slow_message_is_not_redelivered(broker: AerobeeBroker) -> None:
    gate, runs = threading.Event(), []

    @dramatiq.actor(broker=broker)
    def slow() -> None:
        runs.append(1)
        gate.wait()

    slow.send()
    with working(broker):
        until(lambda: bool(runs), "it is processed")
        time.sleep(7)  # more than twice its invisible time
        gate.set()
        broker.join("default", timeout=WITHIN_MS)
    assert runs == [1]


def test_shutdown_finishes_what_runs_and_returns_the_rest(cluster: ThreadedCluster) -> None:
    gate, runs = threading.Event(), []

    def wait(number: int) -> None:
        runs.append(number)
        gate.wait()

    first, second = (broker_at(cluster, invisible_s=300) for _ in range(2))
    actors = [dramatiq.actor(wait, broker=each) for each in (first, second)]
    for number in range(4):
        actors[0].send(number)
    worker = Worker(first, worker_timeout=100, worker_threads=1)
    worker.start()
    until(lambda: len(runs) == 1 and worker.work_queue.qsize() >= 1, "one runs, one is prefetched")
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    gate.set()
    stopping.join()
    first.close()
    with working(second):
        until(lambda: len(runs) == 4, "the others run elsewhere")
    second.close()
    assert sorted(runs) == [0, 1, 2, 3]
    assert dead_letter_count(cluster) == 0


def test_workers_that_join_and_leave_process_each_message_once(cluster: ThreadedCluster) -> None:
    runs: list[tuple[str, int]] = []

    def broker_of(name: str) -> tuple[AerobeeBroker, Any]:
        broker = broker_at(cluster)
        note = dramatiq.actor(lambda number: runs.append((name, number)), actor_name="note", broker=broker)
        return broker, note

    first, actor = broker_of("first")
    guest, _ = broker_of("guest")
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            actor.send(number)
        sent += count

    with working(first, threads=1):
        send(10)
        with working(guest, threads=1):
            while not any(name == "guest" for name, _ in runs):
                send(5)
        guest.close()
        send(10)
        until(lambda: len(runs) >= sent, "all are processed")
    first.close()
    assert sorted(number for _, number in runs) == list(range(sent))


def test_paused_worker_keeps_what_it_processes(broker: AerobeeBroker) -> None:
    runs: list[int] = []
    actor = dramatiq.actor(lambda number: runs.append(number), actor_name="note", broker=broker)
    with working(broker) as worker:
        actor.send(1)
        broker.join("default", timeout=WITHIN_MS)
        worker.pause()
        actor.send(2)
        worker.resume()
        broker.join("default", timeout=WITHIN_MS)
    assert runs == [1, 2]


def test_killed_broker_loses_no_message(cluster: ThreadedCluster, broker: AerobeeBroker) -> None:
    gate, runs = threading.Event(), []

    @dramatiq.actor(broker=broker)
    def hold(number: int) -> None:
        runs.append(number)
        gate.wait()

    for number in range(20):
        hold.send(number)
    with working(broker):
        until(lambda: len(runs) >= 4, "four run")
        cluster.kill_broker()
        gate.set()
        cluster.start_broker()
        until(lambda: set(runs) == set(range(20)), "all run")
        hold.send(20)
        until(lambda: 20 in runs, "a new one runs")


@pytest.mark.slow
def test_killed_worker_loses_no_message(cluster: ThreadedCluster, tmp_path: Path) -> None:
    run_killed_worker(tmp_path, cluster.nameserver_address, "v")


def test_flush_empties_a_queue(broker: AerobeeBroker) -> None:
    runs: list[int] = []
    actor = dramatiq.actor(lambda number: runs.append(number), actor_name="note", broker=broker)
    for number in range(10):
        actor.send(number)
    broker.flush_all()
    actor.send(99)
    with working(broker):
        broker.join("default", timeout=WITHIN_MS)
    assert runs == [99]


def test_wrong_use_is_an_error(broker: AerobeeBroker) -> None:
    actor = dramatiq.actor(lambda text: None, actor_name="ignore", broker=broker)
    with pytest.raises(QueueNotFound):
        broker.consume("absent")
    with pytest.raises(QueueNotFound):
        broker.enqueue(actor.message().copy(queue_name="absent"))
    actor.send("x")
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=50)
    away = AerobeeBroker("127.0.0.1:1")
    with pytest.raises(ConnectionClosed):
        dramatiq.actor(lambda text: None, actor_name="ignore", broker=away).send("x")
