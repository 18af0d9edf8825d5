"""The audit log: a JSON line for each administrator's request and each refusal: user, request, address, result.

A separate thread writes it, so that no request waits for it. Of a request it contains only names: no body, no
value, no signature. It has every action of users; of refusals of unauthenticated clients a few lines and a count per minute (refusals.py).
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from aerobee.access.refusals import WINDOW_MS, Refusals
from aerobee.errors import ConfigError
from aerobee.log_throttle import LogThrottle
from aerobee.remoting.codes import request_name

log = logging.getLogger(__name__)
WAITING_MAX = 10_000
TEXT_CHARS_MAX = 300
# maximum length of texts that unauthenticated clients choose
UNKNOWN_NAME_CHARS_MAX, UNKNOWN_RESULT_CHARS_MAX = 80, 200


class AuditLog:
    """Appends to one file. A full file becomes PATH.1, and PATH.1 becomes PATH.2; another rotation may rename
    and recreate it."""

    def __init__(
        self, path: str, now_ms: Callable[[], int], *, bytes_max: int = 0, files_max: int = 1
    ) -> None:
        """`bytes_max` of the file, 0: no bound; `files_max` older ones are kept. Raises ConfigError when it cannot be written."""
        try:
            with open(path, "a", encoding="utf-8"):
                pass
        except OSError as error:
            raise ConfigError(f"auditLogPath {path} cannot be written: {error}") from error
        self._path = path
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING_MAX)
        self._refusals = Refusals()
        self._refusals_lock = threading.Lock()  # the thread logs the number of omitted entries when idle
        self._throttle = LogThrottle(log, time.monotonic)  # the thread's
        self.lost_count = 0  # lines that the disk was too slow for, or refused
        self._thread = threading.Thread(target=self._write, name="audit-log", daemon=True)
        self._thread.start()

    def note(
        self, *, who: str, code: int, what: str, host: str, result: str, is_unauthenticated: bool = False
    ) -> None:
        """Queue a line, without waiting. `is_unauthenticated`: a refusal of an unauthenticated client; only some of them are written."""
        now_ms = self._now_ms()
        self._say_left_out(now_ms)
        if is_unauthenticated:
            with self._refusals_lock:
                if not self._refusals.admit(host, now_ms):
                    return
            who, what = who[:UNKNOWN_NAME_CHARS_MAX], what[:UNKNOWN_NAME_CHARS_MAX]
            result = result[:UNKNOWN_RESULT_CHARS_MAX]
        self._put(now_ms, who=who, request=request_name(code), what=what, host=host, result=result)

    def close(self) -> None:
        """Write all queued lines; they are in the file on return."""
        self._say_left_out(self._now_ms(), is_last=True)
        self._lines.put(None)
        self._thread.join()

    def _say_left_out(self, now_ms: int, *, is_last: bool = False) -> None:
        with self._refusals_lock:
            left_out = self._refusals.left_out(now_ms, is_last=is_last)
        for host, count in left_out:
            result = f"refused: {count} more requests of unauthenticated clients, not logged"
            self._put(now_ms, who="", request="", what="", host=host, result=result)

    def _put(self, now_ms: int, *, who: str, request: str, what: str, host: str, result: str) -> None:
        moment = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": moment,
            "who": who[:TEXT_CHARS_MAX],
            "request": request,
            "what": what[:TEXT_CHARS_MAX],
            "from": host,
            "result": result[:TEXT_CHARS_MAX],
        }
        try:
            self._lines.put_nowait(json.dumps(fields))
        except queue.Full:
            self.lost_count += 1

    def _write(self) -> None:
        while True:
            try:
                line = self._lines.get(timeout=WINDOW_MS / 1000)
            except queue.Empty:
                self._say_left_out(self._now_ms())
                continue
            if line is None:
                return
            try:
                self._append(line.encode() + b"\n")
            except OSError as error:
                self.lost_count += 1
                self._throttle.warn("write", "the audit log %s cannot be written: %s", self._path, error)

    def _append(self, line: bytes) -> None:
        """Raises OSError."""
        with open(self._path, "ab") as target:
            size = target.tell()
            is_full = self._bytes_max and size and size + len(line) > self._bytes_max
            if not is_full or not self._make_room():
                target.write(line)
                return
        with open(self._path, "ab") as target:
            target.write(line)

    def _make_room(self) -> bool:
        """Rotate the full file and the older ones. False when that failed; lines are then appended to the full file."""
        try:
            for number in range(self._files_max, 0, -1):
                older = self._path if number == 1 else f"{self._path}.{number - 1}"
                if os.path.exists(older):
                    os.replace(older, f"{self._path}.{number}")
        except OSError as error:
            self._throttle.warn(
                "rename", "the audit log %s is full and cannot be renamed: %s", self._path, error
            )
            return False
        return True
