"""What was changed through the console, as JSON lines: when, who, from where, what, and how it ended."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from aerobee.clock import Clock

log = logging.getLogger("aerobee.console.audit")
SECRETS = ("password", "secret", "token")
TEXT_MAX = 500


class Audit:
    """Appends lines. A line that cannot be written refuses the action: what is not on record is not done."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def write(self, *, user: str, address: str, action: str, fields: dict[str, Any], result: str) -> None:
        """`result`: asked, done, or why not. Raises OSError when the file cannot be written. Bodies of messages are cut."""
        line = {
            "time_ms": self._clock.now_ms(),
            "user": user,
            "address": address,
            "action": action,
            "fields": {name: _shown(name, value) for name, value in fields.items()},
            "result": result,
        }
        text = json.dumps(line, ensure_ascii=False)
        if self._path is None:
            log.info("%s", text)
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def _shown(name: str, value: Any) -> Any:
    if any(secret in name.lower() for secret in SECRETS):
        return "***"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
