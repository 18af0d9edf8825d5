"""What a slave takes of its master's answer about timers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee.broker.timer.timer_statement import NEXT, UNITS_MAX, TimerStatement, decode_statement
from aerobee.errors import MalformedFrame
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint
from aerobee.store.timer.timer_log import UNIT, UNIT_BYTES

ONE = UNIT.pack(UNIT_BYTES, -1, 1, 1_000, 0, 0, 100, 7, 1_007)
STATEMENT = TimerStatement(
    source=5,
    position=0,
    next_position=UNIT_BYTES,
    units=ONE,
    checkpoint=TimerCheckpoint(read_time_ms=1_000, log_flushed=UNIT_BYTES, queue_offset=1, scan_from=50),
    log_end=200,
    is_whole=True,
)


def test_an_answer_is_read_as_it_was_written() -> None:
    assert decode_statement(*STATEMENT.encode()) == STATEMENT


def test_a_rocketmq_masters_answer_has_no_units() -> None:
    assert decode_statement({}, STATEMENT.checkpoint.fields()) is None


@pytest.mark.parametrize("count", [UNITS_MAX, UNITS_MAX + 1])
def test_an_answer_has_a_bounded_number_of_units(count: int) -> None:
    fields, body = replace(STATEMENT, units=ONE * count, next_position=count * UNIT_BYTES).encode()
    if count == UNITS_MAX:
        assert decode_statement(fields, body) is not None
    else:
        with pytest.raises(MalformedFrame, match="at most 4096 units"):
            decode_statement(fields, body)


@pytest.mark.parametrize("text", ["", "-1", "x", "9" * 20, "²"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    fields, body = STATEMENT.encode()
    with pytest.raises(MalformedFrame, match=NEXT):
        decode_statement({**fields, NEXT: text}, body)
