"""What was changed through the console, as JSON lines: when, who, from where, what, and how it ended."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from aerobee.clock import Clock

log = logging.getLogger("aerobee.console.audit")
SECRETS = ("password", "secret", "token")
TEXT_MAX = 500  # of each text of a line
FIELDS_MAX = 40  # of a line; no action has so many


class Audit:
    """Appends lines. A line that cannot be written refuses the action: what is not on record is not done."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def write(self, *, user: str, address: str, action: str, fields: dict[str, Any], result: str) -> None:
        """`result`: asked, done, or why not. Raises OSError when the file cannot be written.

        Long texts are cut: who may only look, or nobody has let in, writes here too.
        """
        line = {
            "time_ms": self._clock.now_ms(),
            "user": _cut(user),
            "address": address,
            "action": action,
            "fields": {_cut(name): _shown(name, fields[name]) for name in list(fields)[:FIELDS_MAX]},
            "result": _cut(result),
        }
        if len(fields) > FIELDS_MAX:
            line["fields_left_out"] = len(fields) - FIELDS_MAX
        text = json.dumps(
            line
        )  # ASCII: no character of a name ends the line, or commands the terminal that shows it
        if self._path is None:
            log.info("%s", text)
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def _shown(name: str, value: Any) -> Any:
    if any(secret in name.lower() for secret in SECRETS):
        return "***"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if len(text) <= TEXT_MAX else _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
