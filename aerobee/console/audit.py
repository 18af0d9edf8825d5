"""Audit log of the console's changes as JSON lines: time, user, address, action, fields, result."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from aerobee.clock import Clock
from aerobee.log_lines import AUDIT

log = logging.getLogger("aerobee.console.audit")
SECRETS = ("password", "secret", "token")
TEXT_MAX = 500  # characters of each text in a line
FIELDS_MAX = 40  # fields of a line; every action has fewer


class Audit:
    """Appends lines. If a line cannot be written, the action is refused: no change happens without a record."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        if path is None:
            # --log-level limits what the process says of itself, not its audit log.
            log.setLevel(logging.INFO)
        self._path = path
        self._clock = clock

    def write(self, *, user: str, address: str, action: str, fields: dict[str, Any], result: str) -> None:
        """`result`: asked, done, or the reason of a failure. Raises OSError when the file cannot be written.

        Long texts are truncated, because viewers and unauthenticated clients also cause lines.
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
        text = json.dumps(line)  # ASCII: no character of a name ends the line or controls a terminal
        if self._path is None:
            log.info("%s", text, extra=AUDIT)
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
