"""The audit log: a JSON line for each administrator's request and each refusal: who, what, from where, result.

Written by a thread of its own, so that no request waits for it. Nothing that a request carries but names goes in: no body, no
value, no signature.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from aerobee.errors import ConfigError
from aerobee.remoting.codes import request_name

log = logging.getLogger(__name__)
WAITING_MAX = 10_000
TEXT_CHARS_MAX = 300


class AuditLog:
    """Appends to one file, which whoever rotates it may rename and make anew."""

    def __init__(self, path: str, now_ms: Callable[[], int]) -> None:
        """Raises ConfigError when the file cannot be written."""
        try:
            with open(path, "a", encoding="utf-8"):
                pass
        except OSError as error:
            raise ConfigError(f"auditLogPath {path} cannot be written: {error}") from error
        self._path = path
        self._now_ms = now_ms
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING_MAX)
        self.lost_count = 0  # lines that the disk was too slow for, or refused
        self._thread = threading.Thread(target=self._write, name="audit-log", daemon=True)
        self._thread.start()

    def note(self, *, who: str, code: int, what: str, host: str, result: str) -> None:
        """Returns at once."""
        moment = datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": moment,
            "who": who[:TEXT_CHARS_MAX],
            "request": request_name(code),
            "what": what[:TEXT_CHARS_MAX],
            "from": host,
            "result": result[:TEXT_CHARS_MAX],
        }
        try:
            self._lines.put_nowait(json.dumps(fields))
        except queue.Full:
            self.lost_count += 1

    def close(self) -> None:
        """Everything that was noted is in the file on return."""
        self._lines.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                with open(self._path, "a", encoding="utf-8") as target:
                    target.write(line + "\n")
            except OSError as error:
                self.lost_count += 1
                log.error("the audit log %s cannot be written: %s", self._path, error)
