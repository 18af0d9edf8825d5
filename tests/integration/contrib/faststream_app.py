"""The FastStream application of the integration tests; its worker is a separate process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from faststream import FastStream

from aerobee.contrib.faststream import AerobeeBroker

NOTES = Path(os.environ["FASTSTREAM_TEST_NOTES"])
TOPIC = os.environ["FASTSTREAM_TEST_TOPIC"]
broker = AerobeeBroker(os.environ["FASTSTREAM_TEST_NAMESERVER"], queue_count=2, graceful_timeout=30.0)
app = FastStream(broker)


def note(text: str) -> None:
    """Append a line to the notes."""
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@broker.subscriber(TOPIC, max_workers=4, invisible_s=4)
async def wait_for(name: str, path: str) -> None:
    """Note the start, and end when the file exists."""
    note(f"started {name}")
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)
    note(f"ended {name}")


@broker.subscriber(f"{TOPIC}-sums")
async def add(x: int, y: int) -> int:
    """The answer to a request."""
    note(f"sum {x + y}")
    return x + y


@broker.subscriber(f"{TOPIC}-ordered", ordered=True)
async def count(number: int) -> None:
    """Note the number."""
    note(f"number {number}")


if __name__ == "__main__":
    asyncio.run(app.run())
