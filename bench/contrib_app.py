"""The Celery application of contrib.py: tasks that note how long after their sending they run."""

from __future__ import annotations

import os
import time

from celery import Celery

import aerobee.contrib.celery  # noqa: F401 - registers aerobee://

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_default_queue="bench",
    worker_prefetch_multiplier=16,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def note(sent_at: float) -> None:
    with open(os.environ["BENCH_NOTES"], "a", encoding="utf-8") as file:
        file.write(f"{time.time() - sent_at:.6f}\n")
