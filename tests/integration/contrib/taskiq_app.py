"""The taskiq application of the integration tests; its worker is a separate process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from taskiq import Context, TaskiqDepends

from aerobee.contrib.taskiq import AerobeeBroker

NOTES = Path(os.environ["TASKIQ_TEST_NOTES"])
broker = AerobeeBroker(
    os.environ["TASKIQ_TEST_NAMESERVER"],
    os.environ["TASKIQ_TEST_TOPIC"],
    invisible_s=4,
    queue_count=2,
    max_redeliveries=2,
)


def note(text: str) -> None:
    """Append a line to the notes."""
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@broker.task("add")
async def add(x: int, y: int) -> None:
    note(f"sum {x + y}")


@broker.task("wait_for")
async def wait_for(name: str, path: str, context: Context = TaskiqDepends()) -> None:
    """Note the start, and end when the file exists."""
    note(f"started {name} {context.message.task_id}")
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)
    note(f"ended {name}")
