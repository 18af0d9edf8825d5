"""Celery's transport at a broker of either product: POP, timers, priorities, fanout, and a worker that is killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import kombu
from celery import Celery

import aerobee.contrib.celery  # noqa: F401 - registers aerobee://
from tests.integration.contrib.celery_worker import WITHIN_S, Worker, until, worker_environment
from tests.interop.rocketmq import Cluster, Driver


def test_worker_runs_tasks_and_returns_them_when_killed(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    """Names of tasks, because this process has another application than the worker."""
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    environment = worker_environment(tmp_path, cluster.namesrv, driver.unique("v"))
    app = Celery(broker=environment["CELERY_TEST_BROKER"], backend=environment["CELERY_TEST_BACKEND"])
    app.conf.update(
        task_default_queue="shop", broker_transport_options={"visibility_timeout": 4, "queue_count": 2}
    )
    module = "tests.integration.contrib.celery_app"

    def send(name: str, *arguments: Any, **options: Any) -> Any:
        return app.send_task(f"{module}.{name}", arguments, **options)

    with Worker(tmp_path, environment) as worker:
        assert send("add", 2, 3).get(WITHIN_S) == 5
        assert send("third_time").get(WITHIN_S) == 2
        begin = time.time()
        assert send("now", countdown=3).get(WITHIN_S) >= begin + 3
        assert app.control.inspect([worker.name], timeout=WITHIN_S).ping() == {worker.name: {"ok": "pong"}}
        results = [send("wait_for", str(gate)) for _ in range(4)]
        until(lambda: notes.exists() and notes.read_text().count("started") >= 2, "two tasks run")
        worker.kill()
        gate.touch()
        worker.start()
        assert sum(result.get(WITHIN_S) for result in results) >= 1
    app.close()


def test_priorities_and_fanout(cluster: Cluster, driver: Driver) -> None:
    with kombu.Connection(f"aerobee://{cluster.namesrv}/{driver.unique('v')}") as connection:
        queue = kombu.Queue("ranks", kombu.Exchange("ranks"), "ranks", max_priority=9)
        producer = kombu.Producer(connection)
        for priority in (1, 7, 4):
            producer.publish(
                priority, exchange="ranks", routing_key="ranks", priority=priority, declare=[queue]
            )
        assert bodies(connection, queue, 3) == [7, 4, 1]
        exchange = kombu.Exchange("news", "fanout", durable=False)
        reader = kombu.Queue("news.1", exchange, auto_delete=True)
        reader(connection.default_channel).declare()
        producer.publish("hello", exchange=exchange, declare=[exchange])
        assert bodies(connection, reader, 1) == ["hello"]


def bodies(connection: Any, queue: Any, count: int) -> list[Any]:
    """What `count` messages of a queue contain."""
    found: list[Any] = []

    def remember(body: Any, message: Any) -> None:
        found.append(body)
        message.ack()

    with kombu.Consumer(connection, [queue], callbacks=[remember]):
        while len(found) < count:
            connection.drain_events(timeout=WITHIN_S)
    return found
