"""A master's side of copying timers: answers GET_TIMER_CHECK_POINT (60) of Aerobee's and RocketMQ's slaves
(timer_statement.py).
"""

from __future__ import annotations

import random

from aerobee.broker.timer.timer_saver import TimerSaver
from aerobee.broker.timer.timer_statement import (
    NOT_RUNNING,
    POSITION,
    SOURCE,
    UNITS_MAX,
    WALK,
    WHEEL_FIRST,
    WHEEL_NEXT,
    TimerStatement,
)
from aerobee.remoting.command import RemotingCommand
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import UNIT, UNIT_BYTES
from aerobee.store.timer.wheel_walk import WalkPosition, decode_walk_position, walk

_NUMBER_BITS = 62


class TimerSource:
    """Serves slaves; between begin() and end() its replies contain units. Belongs to the event loop."""

    def __init__(self, *, files: TimerFiles, saver: TimerSaver, store: MessageStore) -> None:
        self._files = files
        self._saver = saver
        self._store = store
        self._number = 0  # of this mastership's timer log; 0: none

    def begin(self) -> None:
        """This broker's timer runs: its files are what slaves copy."""
        self._number = random.getrandbits(_NUMBER_BITS) + 1

    def end(self) -> None:
        """Stop adding units to replies."""
        self._number = 0

    def answer(self, request: RemotingCommand) -> RemotingCommand:
        """The checkpoint on the disk for RocketMQ's slaves; the present checkpoint with the next units for
        Aerobee's.
        """
        if request.field(SOURCE) is None:
            return request.reply(body=self._saver.current.fields())
        if not self._number or self._saver.is_held:
            return request.reply(ext=dict(NOT_RUNNING), body=self._saver.current.fields())
        fields, body = self._statement(request).encode()
        return request.reply(ext=fields, body=body)

    def _statement(self, request: RemotingCommand) -> TimerStatement:
        log = self._files.log
        position = request.integer(POSITION, 0)
        if request.integer(SOURCE, 0) != self._number:
            return self._of_wheel(log.end, WalkPosition(), WHEEL_FIRST)
        if (text := request.field(WALK)) is not None:
            try:
                begin = decode_walk_position(text)
            except ValueError:
                begin = None
            if begin is not None and log.min_position <= position <= log.end:
                return self._of_wheel(position, begin, WHEEL_NEXT)
            return self._of_wheel(log.end, WalkPosition(), WHEEL_FIRST)
        piece = log.piece(position, UNITS_MAX) if position >= 0 else None
        if piece is None:
            return self._of_wheel(log.end, WalkPosition(), WHEEL_FIRST)
        units, next_position = piece
        return TimerStatement(
            source=self._number,
            position=position,
            next_position=next_position,
            units=units,
            checkpoint=self._saver.present(),
            log_end=self._store.log.end,
            is_whole=next_position == log.end,
        )

    def _of_wheel(self, until: int, begin: WalkPosition, kind: str) -> TimerStatement:
        """A part of what waits in the wheel; `until` is where the timer log continues behind it."""
        checkpoint = self._saver.present()
        part = walk(self._files, begin, read_time_ms=checkpoint.read_time_ms, until=until)
        return TimerStatement(
            source=self._number,
            position=until,
            next_position=until,
            units=b"".join(UNIT.pack(UNIT_BYTES, *unit) for unit in part.units),
            checkpoint=checkpoint,
            log_end=self._store.log.end,
            is_whole=False,
            wheel=kind,
            walk="" if part.following is None else part.following.encode(),
        )
