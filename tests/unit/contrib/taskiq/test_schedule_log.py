"""Schedules of taskiq as a log of changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taskiq import ScheduledTask

from aerobee.contrib.taskiq import schedule_log as module
from aerobee.contrib.taskiq.schedule_log import Change, ScheduleLog, encode_add, encode_delete
from aerobee.errors import MalformedRecord


def schedule(name: str = "a", cron: str = "* * * * *") -> ScheduledTask:
    return ScheduledTask(
        task_name="shop:price", labels={"x": 1}, args=[1, "b"], kwargs={}, schedule_id=name, cron=cron
    )


def log_of(*records: bytes) -> ScheduleLog:
    log = ScheduleLog()
    for at_ms, record in enumerate(records):
        log.apply(record, at_ms)
    return log


def test_a_schedule_is_kept_until_it_is_deleted() -> None:
    assert log_of(encode_add(schedule())).kept["a"].schedule == schedule()
    assert log_of(encode_add(schedule()), encode_delete("a")).kept == {}
    assert set(log_of(encode_add(schedule()), encode_delete("b")).kept) == {"a"}


def test_a_second_add_replaces_the_first() -> None:
    log = log_of(encode_add(schedule()), encode_add(schedule(cron="5 * * * *")))
    assert log.kept["a"].schedule.cron == "5 * * * *"


def test_a_renewal_keeps_a_schedule_whose_add_has_expired() -> None:
    log = log_of(encode_add(schedule(), Change.RENEW))
    assert set(log.kept) == {"a"}
    assert log.older_than(1) == [schedule()]
    assert log.older_than(0) == []


def test_a_renewal_after_a_delete_is_void() -> None:
    log = log_of(encode_add(schedule()), encode_delete("a"))
    assert log.apply(encode_add(schedule(), Change.RENEW), 9) == "a"
    assert log.kept == {}
    assert log.apply(encode_add(schedule()), 10) is None, "a new add is valid"
    assert log.apply(encode_add(schedule(), Change.RENEW), 11) is None
    assert log.kept["a"].stored_ms == 11


def test_deleted_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELETED_MAX", 2)
    log = log_of(*(encode_delete(name) for name in "abc"))
    assert list(log._deleted) == ["b", "c"]


@pytest.mark.parametrize(
    "record", [b"", b"\xff", b"[]", b"7", b'{"change":"add"}', b'{"change":"x"}', b"[" * 9000,
               b'{"change":"add","schedule":{"task_name":"a"}}', b"x" * (module.SCHEDULE_BYTES_MAX + 1)],
)  # fmt: skip
def test_foreign_records_are_refused(record: bytes) -> None:
    with pytest.raises(MalformedRecord):
        ScheduleLog().apply(record, 0)


@given(st.binary())
def test_any_record_is_read_or_refused(record: bytes) -> None:
    log = ScheduleLog()
    try:
        assert log.apply(record, 0) is None
    except MalformedRecord:
        assert log.kept == {}
