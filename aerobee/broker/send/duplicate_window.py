"""Deduplication as a feature of the broker: keeps the table of keys equal to the log, at master and slave.

    master   send_service.py records each key as it stores the message
    slave    new log bytes are searched for keys five times a second, so that a promotion has little left to read
    cut      keys of truncated messages are removed

Invariant: every key before `known_to` was found by a search, or recorded by the send that stored it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from aerobee.broker.send.keyed_records import keyed_records, window_start
from aerobee.broker.send.send_duplicates import FEATURE, SendDuplicates
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.feature import Feature
from aerobee.clock import Clock, Timer
from aerobee.message import Record
from aerobee.store.log.commit_log import CommitLog

log = logging.getLogger(__name__)

LOOK_S = 0.2
BUSY_LOOK_S = 0.005  # while there is more
PIECES_PER_TURN = 2  # then other tasks of the event loop run


class DuplicateWindow(Feature):
    """The deduplication feature. Belongs to the event loop."""

    name = FEATURE

    def __init__(
        self, *, duplicates: SendDuplicates, log_files: CommitLog, live: LiveConfig, clock: Clock
    ) -> None:
        self.known_to = 0  # physical offset
        self._duplicates = duplicates
        self._log = log_files
        self._live = live
        self._clock = clock
        self._timer: Timer | None = None
        self._reading: Iterator[Record | None] | None = None
        self._reading_end = 0
        self._is_started = False  # sends record their keys

    def load(self) -> None:
        """Read the keys of the window, blocking. Files without any key are passed over by one search."""
        self.known_to = self._log.end
        if not self._window_ms:
            return
        begin_ms = self._clock.now_ms() - self._window_ms
        start = window_start(self._log, begin_ms)
        for record in keyed_records(self._log, start, self._log.end, since_ms=begin_ms):
            if record is not None:
                self._duplicates.note_record(record)
        log.info(
            "%d deduplication keys of the last %d ms were read from the log",
            len(self._duplicates), self._window_ms,
        )  # fmt: skip

    async def take_over(self) -> None:
        # Sends record their keys from now on; sends with a key are refused until this search ends.
        end = self._log.end
        while self._begin(end):
            self._read(PIECES_PER_TURN)
            await asyncio.sleep(0)

    def start(self) -> None:
        self.stop()
        self._is_started = True

    def follow(self) -> None:
        self.stop()
        self._timer = self._clock.call_later(LOOK_S, self._look)

    def resign(self) -> None:
        self.stop()
        # Otherwise this master had not taken over yet, and the keys are known only up to the searched offset.
        if self._is_started:
            self.known_to = self._log.end
        self._is_started, self._reading = False, None

    def log_cut(self, log_offset: int) -> None:
        self._duplicates.cut(log_offset)
        self._reading = None
        self.known_to = min(self.known_to, log_offset)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- reading

    @property
    def _window_ms(self) -> int:
        return self._live.value.dedup_window_millis

    def _look(self) -> None:
        """Record the keys of the log bytes that were copied since the last call."""
        is_done = not self._begin(self._log.end) or self._read(PIECES_PER_TURN)
        self._timer = self._clock.call_later(LOOK_S if is_done else BUSY_LOOK_S, self._look)

    def _begin(self, end: int) -> bool:
        """Whether anything before `end` is to be read; then _read() does it."""
        if not self._window_ms:
            self._reading, self.known_to = None, max(self.known_to, end)
        if self.known_to >= end:
            return False
        if self._reading is None:
            start = max(self.known_to, self._log.min_offset)
            since_ms = self._clock.now_ms() - self._window_ms
            self._reading = keyed_records(self._log, start, end, since_ms=since_ms)
            self._reading_end = end
        return True

    def _read(self, piece_count: int) -> bool:
        """Read at most `piece_count` pieces of the log. Returns whether the range of _begin() is read completely."""
        reading = self._reading
        assert reading is not None
        for record in reading:
            if record is not None:
                self._duplicates.note_record(record)
                continue
            piece_count -= 1
            if piece_count <= 0:
                return False
        self._reading, self.known_to = None, self._reading_end
        return True
