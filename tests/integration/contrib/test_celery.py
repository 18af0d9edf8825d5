"""Celery with real workers, in separate processes, against a cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TimeoutError as ResultTimeout

from tests.integration.contrib.celery_worker import WITHIN_S, Worker, until

pytestmark = pytest.mark.slow


def test_task_returns_its_result(tasks: Any, worker: Worker) -> None:
    assert tasks.add.delay(2, 3).get(WITHIN_S) == 5
    with pytest.raises(ValueError, match="as wanted"):
        tasks.fail.delay().get(WITHIN_S)


def test_retry_comes_by_a_timer(tasks: Any, worker: Worker) -> None:
    assert tasks.third_time.delay().get(WITHIN_S) == 2


def test_countdown_is_kept_at_the_broker(tasks: Any, worker: Worker) -> None:
    begin = time.time()
    result = tasks.now.apply_async(countdown=2)
    scheduled = tasks.app.control.inspect([worker.name], timeout=WITHIN_S).scheduled()
    assert scheduled == {worker.name: []}, "the worker holds the task"
    assert result.get(WITHIN_S) >= begin + 2


def test_canvas(tasks: Any, worker: Worker) -> None:
    assert chain(tasks.add.s(1, 2), tasks.add.s(10))().get(WITHIN_S) == 13
    assert group(tasks.add.s(n, n) for n in range(4))().get(WITHIN_S) == [0, 2, 4, 6]
    assert chord((tasks.add.s(n, n) for n in range(4)), tasks.total.s())().get(WITHIN_S) == 12


def test_inspect_and_remote_control(tasks: Any, worker: Worker) -> None:
    control = tasks.app.control
    assert control.inspect([worker.name], timeout=WITHIN_S).ping() == {worker.name: {"ok": "pong"}}
    assert control.ping(destination=[worker.name], timeout=WITHIN_S) == [{worker.name: {"ok": "pong"}}]
    answers = control.rate_limit(
        tasks.add.name, "100/s", destination=[worker.name], reply=True, timeout=WITHIN_S
    )
    assert answers == [{worker.name: {"ok": "new rate limit set successfully"}}]


def test_events_reach_a_receiver(tasks: Any, worker: Worker) -> None:
    seen: list[str] = []

    def remember(event: dict[str, Any]) -> None:
        seen.append(event["type"])
        if event["type"] == "task-succeeded":
            receiver.should_stop = True

    with tasks.app.connection() as connection:
        receiver = tasks.app.events.Receiver(connection, handlers={"*": remember})
        receiver.on_consume_ready = lambda *_, **__: tasks.add.delay(1, 1)
        receiver.capture(limit=None, timeout=WITHIN_S, wakeup=False)
    assert {"task-sent", "task-received", "task-started", "task-succeeded"} <= set(seen)


def test_killed_worker_loses_no_task(
    tasks: Any, worker: Worker, directory: Path, environment: dict[str, str]
) -> None:
    gate, notes = directory / "gate", directory / "notes"
    tasks.app.control.cancel_consumer("shop", reply=True, timeout=WITHIN_S, destination=[worker.name])
    with Worker(directory, environment, "victim") as victim:
        results = [tasks.wait_for.delay(str(gate)) for _ in range(5)]
        until(lambda: notes.exists() and notes.read_text().count("started") >= 2, "two tasks run")
        victim.kill()
    tasks.app.control.add_consumer("shop", reply=True, timeout=WITHIN_S, destination=[worker.name])
    gate.touch()
    redelivered = [result.get(WITHIN_S) for result in results]
    assert any(redelivered)


def test_slow_task_is_not_redelivered(tasks: Any, worker: Worker, directory: Path) -> None:
    gate, notes = directory / "slow-gate", directory / "notes"
    result = tasks.wait_for.delay(str(gate))
    with pytest.raises(ResultTimeout):
        result.get(9)  # more than twice the visibility timeout
    gate.touch()
    assert result.get(WITHIN_S) is False
    assert notes.read_text().count(f"started {result.id}") == 1


def test_lost_pool_process_requeues_its_task(tasks: Any, worker: Worker, directory: Path) -> None:
    assert tasks.die_once.delay(str(directory / "died")).get(WITHIN_S) == "alive"


def test_warm_shutdown_returns_what_it_prefetched(
    tasks: Any, worker: Worker, directory: Path, environment: dict[str, str]
) -> None:
    gate = directory / "warm-gate"
    tasks.app.control.cancel_consumer("shop", reply=True, timeout=WITHIN_S, destination=[worker.name])
    with Worker(directory, environment, "leaver", "--concurrency", "1") as leaver:
        results = [tasks.wait_for.delay(str(gate)) for _ in range(2)]
        until(
            lambda: results[0].id in leaver.text() and results[1].id in leaver.text(), "both are prefetched"
        )
        tasks.app.control.add_consumer("shop", reply=True, timeout=WITHIN_S, destination=[worker.name])
        gate.touch()
        assert leaver.stop() == 0
    assert [result.get(WITHIN_S) for result in results] == [False, False], "a return is no redelivery"
