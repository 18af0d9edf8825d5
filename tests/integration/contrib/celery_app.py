"""The Celery application of the integration tests; its worker is a separate process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery

import aerobee.contrib.celery  # noqa: F401 - registers aerobee://

app = Celery("shop", broker=os.environ["CELERY_TEST_BROKER"], backend=os.environ["CELERY_TEST_BACKEND"])
app.conf.update(
    task_acks_late=True,
    task_default_queue="shop",
    task_send_sent_event=True,
    worker_prefetch_multiplier=2,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 4, "queue_count": 2, "max_redeliveries": 3},
)
# Files that tasks write, one line for each call.
NOTES = Path(os.environ["CELERY_TEST_NOTES"])


def note(text: str) -> None:
    """Append a line to the notes."""
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def third_time(self: Any) -> int:
    """Fails twice, and is retried by a timer message."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@app.task
def now() -> float:
    return time.time()


@app.task
def fail() -> None:
    raise ValueError("as wanted")


@app.task(acks_on_failure_or_timeout=False)
def fail_unacknowledged() -> None:
    raise ValueError("as wanted")


@app.task(time_limit=1)
def hang() -> None:
    while True:
        time.sleep(1)


@app.task(bind=True)
def note_run(self: Any) -> None:
    note(f"ran {self.request.id}")


@app.task(bind=True, reject_on_worker_lost=True)
def die(self: Any) -> None:
    """Kill the pool's process at each call."""
    note(f"started {self.request.id}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, reject_on_worker_lost=True)
def wait_for(self: Any, path: str) -> bool:
    """Note the start, and return when the file exists: whether this was a redelivery."""
    note(f"started {self.request.id}")
    while not Path(path).exists():
        time.sleep(0.02)
    note(f"ended {self.request.id}")
    return bool(self.request.delivery_info["redelivered"])


@app.task(bind=True, reject_on_worker_lost=True)
def die_once(self: Any, path: str) -> str:
    """Kill the pool's process at the first call."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return "alive"
    os.kill(os.getpid(), signal.SIGKILL)
    return "unreachable"
