"""Flower sees workers and tasks over aerobee://, and controls them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.contrib.celery_worker import APP, ROOT, WITHIN_S, Worker, until

pytestmark = pytest.mark.slow


@pytest.fixture
def flower(environment: dict[str, str], worker: Worker, directory: Path) -> Iterator[httpx.Client]:
    """A client of a flower process, which listens on a Unix socket."""
    socket, log = directory / "flower.sock", directory / "flower.log"
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", APP, "flower", f"--unix_socket={socket}"],
            cwd=directory,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": os.pathsep.join(paths),
                "FLOWER_UNAUTHENTICATED_API": "true",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: socket.exists() or process.poll() is not None, "flower listens")
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://flower", timeout=WITHIN_S
        ) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        process.wait(WITHIN_S)
    finally:
        process.kill()
        process.wait()


def answer(client: httpx.Client, path: str) -> Any:
    response = client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def test_flower_shows_workers_and_tasks_and_controls_them(
    tasks: Any, worker: Worker, flower: httpx.Client
) -> None:
    def is_listed() -> bool:
        """Flower waits a second for a worker's answers; what came too late is missing until the next look."""
        seen = answer(flower, "/api/workers?refresh=1").get(worker.name, {})
        queues = [queue["name"] for queue in seen.get("active_queues") or ()]
        # Behind the name of a task is its rate limit, if another test has set one.
        registered = [name.partition(" ")[0] for name in seen.get("registered") or ()]
        return tasks.add.name in registered and queues == ["shop"]

    until(is_listed, "flower lists the worker, its tasks and its queue")

    def shown(task_id: str) -> Any:
        return answer(flower, "/api/tasks").get(task_id, {})

    def run_until_shown() -> bool:
        """Flower reads events from its start on; of a task before that it has none."""
        result = tasks.add.delay(2, 3)
        assert result.get(WITHIN_S) == 5
        return bool(shown(result.id))

    until(run_until_shown, "flower reads events")
    done, failed = tasks.add.delay(20, 3), tasks.fail.delay()
    until(lambda: shown(done.id).get("state") == "SUCCESS", "flower shows the success")
    until(lambda: shown(failed.id).get("state") == "FAILURE", "flower shows the failure")
    assert (shown(done.id)["worker"], shown(done.id)["result"]) == (worker.name, "23")
    assert "as wanted" in shown(failed.id)["exception"]

    sent = flower.post(f"/api/task/async-apply/{tasks.add.name}", json={"args": [4, 5]}).json()
    until(lambda: shown(sent["task-id"]).get("result") == "9", "the task that flower sent has run")

    def is_limited() -> bool:
        """Flower waits a second for the worker's answer."""
        answered = flower.post(
            f"/api/task/rate-limit/{tasks.add.name}", data={"workername": worker.name, "ratelimit": "1000/s"}
        )
        return answered.status_code == 200 and answered.json() == {
            "message": "new rate limit set successfully"
        }

    until(is_limited, "the worker takes the rate limit")
