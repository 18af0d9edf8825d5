"""What becomes of Celery's tasks when tasks, workers or brokers fail: what Celery documents, and nothing is lost."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded
from celery import Celery

from aerobee.testing import ThreadedCluster
from tests.integration.contrib.celery_worker import WITHIN_S, Worker, until, worker_environment

pytestmark = pytest.mark.slow

MODULE = "tests.integration.contrib.celery_app"
DEAD_LETTERS = "%DLQ%shop"


def dead_letter_ids(cluster: ThreadedCluster, task_id: str) -> list[str]:
    """Ids of the group's dead letters, read until the one of `task_id` is there."""
    found: list[str] = []
    with cluster.pull_consumer("reader") as reader:
        until(lambda: bool(reader.queues(DEAD_LETTERS)), "the topic of dead letters is routed")
        reader.assign(reader.queues(DEAD_LETTERS))
        for each in reader.assigned:
            reader.seek_to_begin(each)

        def has_arrived() -> bool:
            found.extend(key for message in reader.poll(1) for key in message.keys)
            return task_id in found

        until(has_arrived, f"{task_id} is a dead letter")
    return found


def test_failed_task_is_acknowledged(
    tasks: Any, worker: Worker, celery_cluster: ThreadedCluster, directory: Path
) -> None:
    """With task_acks_on_failure_or_timeout, the default; without it, the task is a dead letter."""
    failed, rejected = tasks.fail.delay(), tasks.fail_unacknowledged.delay()
    for result in (failed, rejected):
        with pytest.raises(ValueError, match="as wanted"):
            result.get(WITHIN_S)
    found = dead_letter_ids(celery_cluster, rejected.id)
    assert failed.id not in found


def test_task_beyond_its_time_limit_fails_once(
    tasks: Any, worker: Worker, celery_cluster: ThreadedCluster
) -> None:
    result = tasks.hang.delay()
    with pytest.raises(TimeLimitExceeded):
        result.get(WITHIN_S)
    assert tasks.add.delay(1, 2).get(WITHIN_S) == 3, "the pool has a process again"


def test_unknown_task_is_a_dead_letter(tasks: Any, worker: Worker, celery_cluster: ThreadedCluster) -> None:
    unknown = tasks.app.send_task("no.such.task")
    assert unknown.id in dead_letter_ids(celery_cluster, unknown.id)
    assert tasks.add.delay(1, 2).get(WITHIN_S) == 3, "the worker continues"


def test_poison_task_is_a_dead_letter_after_its_redeliveries(
    tasks: Any, worker: Worker, celery_cluster: ThreadedCluster, directory: Path
) -> None:
    poison = tasks.die.delay()
    assert dead_letter_ids(celery_cluster, poison.id).count(poison.id) == 1
    notes = (directory / "notes").read_text(encoding="utf-8")
    assert notes.count(f"started {poison.id}") == 1 + 3
    assert tasks.add.delay(1, 2).get(WITHIN_S) == 3, "the worker continues"


def test_cold_shutdown_returns_the_tasks_that_run(
    tasks: Any, worker: Worker, directory: Path, environment: dict[str, str]
) -> None:
    gate, notes = directory / "cold-gate", directory / "notes"
    control = tasks.app.control
    control.cancel_consumer("shop", reply=True, timeout=WITHIN_S, destination=[worker.name])
    with Worker(directory, environment, "quitter", "--concurrency", "1") as quitter:
        results = [tasks.wait_for.delay(str(gate)) for _ in range(3)]
        until(
            lambda: notes.exists() and any(f"started {each.id}" in notes.read_text() for each in results),
            "one runs",
        )
        quitter.stop(signal.SIGQUIT)
    control.add_consumer("shop", reply=True, timeout=WITHIN_S, destination=[worker.name])
    gate.touch()
    for result in results:
        assert result.get(WITHIN_S) in (True, False)


def test_workers_that_join_and_leave_run_each_task_once(
    tasks: Any, worker: Worker, directory: Path, environment: dict[str, str]
) -> None:
    """Tasks that run at a warm shutdown are in test_celery; Celery itself runs some twice when it has just received them."""
    notes = directory / "notes"
    results = [tasks.note_run.delay() for _ in range(20)]
    with Worker(directory, environment, "guest") as guest:
        while not any(each.id in guest.text() for each in results):
            results.append(tasks.note_run.delay())
            results[-1].get(WITHIN_S)
        for result in results:
            result.get(WITHIN_S)
        assert guest.stop() == 0
    results += [tasks.note_run.delay() for _ in range(20)]
    for result in results:
        result.get(WITHIN_S)
    text = notes.read_text(encoding="utf-8")
    assert {text.count(f"ran {each.id}") for each in results} == {1}


def test_killed_broker_loses_no_task(tmp_path: Path) -> None:
    """Tasks that run, that are prefetched, and that are at the broker."""
    gate, notes = tmp_path / "gate", tmp_path / "notes"
    with ThreadedCluster() as cluster:
        environment = worker_environment(tmp_path, cluster.nameserver_address)
        app = Celery(broker=environment["CELERY_TEST_BROKER"], backend=environment["CELERY_TEST_BACKEND"])
        app.conf.update(task_default_queue="shop")
        with Worker(tmp_path, environment) as worker:
            results = [app.send_task(f"{MODULE}.wait_for", [str(gate)]) for _ in range(12)]
            until(lambda: notes.exists() and notes.read_text().count("started") >= 2, "two tasks run")
            cluster.kill_broker()
            gate.touch()
            until(lambda: notes.read_text().count("ended") >= 2, "they end without the broker")
            cluster.start_broker()
            results.append(app.send_task(f"{MODULE}.wait_for", [str(gate)]))
            for result in results:
                assert result.get(WITHIN_S) in (True, False)
            assert worker.stop() == 0
        app.close()
