"""The dramatiq application of the integration tests; its worker is a separate process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dramatiq
from dramatiq.middleware import CurrentMessage

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

dramatiq.get_broker().add_middleware(CurrentMessage())


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
    message = CurrentMessage.get_current_message()
    assert message is not None
    note(f"started {name} {message.message_id}")
    while not Path(path).exists():
        time.sleep(0.02)
    note(f"ended {name}")
