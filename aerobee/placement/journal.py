"""Journal of an apply: one JSON line per event, on disk before the next step begins.

The cluster contains the state of a topic; the journal contains the direction (apply or revert) and the start.
Readers ignore a last line that a crash truncated. A run locks the file: two runs, one applying and one
reverting, would undo each other's changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from aerobee.errors import UsageError
from aerobee.system import open_locked, sync_file, unlock_and_close

BYTES_MAX = 256 * 1024 * 1024
FIELDS: dict[str, dict[str, type]] = {  # required fields, which later runs read
    "begin": {"ordered": dict, "plan": str},
    "removing": {"topic": str, "broker": str, "ends": dict, "read": int, "left": int},
}


class Journal:
    """The journal file next to a plan. Each call opens and closes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the journal against other runs of this machine, in this process too. Raises UsageError when
        another run holds the lock.

        Creates the file. The lock ends with the process, however that ends.
        """
        try:
            descriptor = open_locked(self.path)
        except OSError as error:
            raise UsageError(
                f"the journal {self.path} cannot be written or locked: {error.strerror}"
            ) from error
        if descriptor is None:
            raise UsageError(
                f"another process is applying or reverting this plan and holds {self.path}: wait until it "
                f"ends, or end it"
            )
        try:
            yield
        finally:
            unlock_and_close(descriptor)

    def events(self) -> list[dict[str, Any]]:
        """All events, the oldest first. Raises UsageError for a file that is no journal."""
        if not self.path.exists():
            return []
        if self.path.stat().st_size > BYTES_MAX:
            raise UsageError(f"{self.path} is larger than {BYTES_MAX} bytes: it is no journal of a plan")
        # Bytes after the last line's end were cut off by a crash; note() removes them.
        lines = self.path.read_bytes().split(b"\n")[:-1]
        found = []
        for number, line in enumerate(lines):
            if not line:
                continue
            try:
                found.append(_event(orjson.loads(line)))
            except ValueError as error:
                raise UsageError(
                    f"{self.path}, line {number + 1}: {error}; it is no journal of a plan"
                ) from error
        return found

    def events_of(self, digest: str) -> list[dict[str, Any]]:
        """As events(). Raises UsageError when they belong to a plan with another SHA-256 than `digest`, in hex."""
        events = self.events()
        if any(event["plan"] != digest for event in events if event["event"] == "begin"):
            raise UsageError(
                f"{self.path} is the journal of another plan: the plan next to it was changed or replaced after its start. Restore the plan "
                f"that was started, or rename this one"
            )
        return events

    def clusters(self) -> list[set[str]]:
        """The identity of the cluster at each start (PlacementAdmin.identity), the oldest first; older journals have none."""
        return [
            set(event["cluster"])
            for event in self.events()
            if event["event"] == "begin" and event.get("cluster")
        ]

    def was_cut_off(self) -> bool:
        """Whether the last run was interrupted or failed: one of its requests may still arrive."""
        events = self.events()
        return bool(events) and events[-1]["event"] != "end"

    def note(self, event: str, **fields: object) -> None:
        """Add an event; it is durable when this returns."""
        line = orjson.dumps({"event": event, **fields}) + b"\n"
        with self.path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":  # end of a line that a crash cut off
                    kept = self.path.read_bytes().rpartition(b"\n")
                    file.truncate(len(kept[0]) + len(kept[1]))
            file.write(line)
            file.flush()
            sync_file(file.fileno())

    def remove(self) -> None:
        """Forget everything."""
        self.path.unlink(missing_ok=True)


def _event(event: Any) -> dict[str, Any]:
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise ValueError("no event")
    wanted = FIELDS.get(event["event"], {})
    for name, kind in wanted.items():
        if not isinstance(event.get(name), kind) or isinstance(event[name], bool):
            raise ValueError(f"{name} of {event['event']!r} is missing or no {kind.__name__}")
    if event["event"] == "begin" and not all(isinstance(text, str) for text in event["ordered"].values()):
        raise ValueError("ordered of 'begin' has what is no order configuration")
    cluster = event.get("cluster", [])
    if not isinstance(cluster, list) or not all(isinstance(each, str) for each in cluster):
        raise ValueError("cluster is no list of brokers")
    if event["event"] == "removing":
        for queue_id, end in event["ends"].items():
            if not queue_id.isdecimal() or isinstance(end, bool) or not isinstance(end, int):
                raise ValueError(f"{queue_id!r}: {end!r} is no end of a queue")
    return event
