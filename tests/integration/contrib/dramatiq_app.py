"""The dramatiq application of the integration tests; its worker is a separate process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dramatiq

from aerobee.contrib.dramatiq import AerobeeBroker

NOTES = Path(os.environ["DRAMATIQ_TEST_NOTES"])
dramatiq.set_broker(
    AerobeeBroker(
        os.environ["DRAMATIQ_TEST_NAMESERVER"],
        namespace=os.environ["DRAMATIQ_TEST_NAMESPACE"],
        invisible_s=4,
        queue_count=2,
    )
)


def note(text: str) -> None:
    """Append a line to the notes."""
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@dramatiq.actor
def add(x: int, y: int) -> None:
    note(f"sum {x + y}")


@dramatiq.actor
def wait_for(name: str, path: str) -> None:
    """Note the start, and end when the file exists."""
    note(f"started {name}")
    while not Path(path).exists():
        time.sleep(0.02)
    note(f"ended {name}")
