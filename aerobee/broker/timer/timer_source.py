"""A master's side of copying timers: answers GET_TIMER_CHECK_POINT (60) of slaves, ours and RocketMQ's (timer_statement.py)."""

from __future__ import annotations

import random

from aerobee.broker.timer.timer_saver import TimerSaver
from aerobee.broker.timer.timer_statement import NOT_RUNNING, POSITION, SOURCE, TimerStatement
from aerobee.remoting.command import RemotingCommand
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_files import TimerFiles

UNITS_PER_ANSWER = 4_096  # 208 KiB
_NUMBER_BITS = 62


class TimerSource:
    """Belongs to the event loop; answers with units between begin() and end()."""

    def __init__(self, *, files: TimerFiles, saver: TimerSaver, store: MessageStore) -> None:
        self._files = files
        self._saver = saver
        self._store = store
        self._number = 0  # of this mastership's timer log; 0: none

    def begin(self) -> None:
        """This broker's timer runs: its files are what slaves copy."""
        self._number = random.getrandbits(_NUMBER_BITS) + 1

    def end(self) -> None:
        """They are not any more."""
        self._number = 0

    def answer(self, request: RemotingCommand) -> RemotingCommand:
        """The checkpoint on the disk for RocketMQ's slaves; the present one with the next units for ours."""
        if request.field(SOURCE) is None:
            return request.reply(body=self._saver.current.fields())
        if not self._number:
            return request.reply(ext=dict(NOT_RUNNING), body=self._saver.current.fields())
        fields, body = self._statement(request.integer(SOURCE, 0), request.integer(POSITION, 0)).encode()
        return request.reply(ext=fields, body=body)

    def _statement(self, number: int, position: int) -> TimerStatement:
        log = self._files.log
        piece = log.piece(position, UNITS_PER_ANSWER) if number == self._number and position >= 0 else None
        if piece is None:
            position = log.min_position
            piece = log.piece(position, UNITS_PER_ANSWER) or (b"", log.end)
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
