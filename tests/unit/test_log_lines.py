"""A log shows what peers put into it, but they add no line, steer no terminal and fill no disk."""

from __future__ import annotations

import io
import json
import logging

import pytest

from aerobee.clock import SystemClock
from aerobee.console import audit as console_audit
from aerobee.console.audit import Audit
from aerobee.log_lines import INTERVAL_S, LINES_MAX, MESSAGE_CHARS_MAX, LineFormatter, LineThrottle, log_to
from aerobee.log_throttle import LogThrottle
from aerobee.ops.commands.tree import run_cli

FORGED = "n9\n2026-11-26 15:00:00,000 CRITICAL aerobee.controller: FORGED \x1b[31m\u202e\r\x85"


class Log:
    """A logger with the handler of a process, and what it has written."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.now = 0.0
        self.log = logging.Logger("aerobee.test", logging.DEBUG)
        self.log.addHandler(log_to(self.stream, lambda: self.now))

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().split("\n")[:-1]


@pytest.fixture
def written() -> Log:
    return Log()


def test_a_name_with_line_breaks_stays_in_its_line(written: Log) -> None:
    written.log.warning("a message of %s is refused", FORGED)
    (line,) = written.lines
    assert line.isprintable()
    assert (
        r"n9\n2026-11-26 15:00:00,000 CRITICAL aerobee.controller: FORGED \x1b[31m\u202e\x0d\x85 is refused"
        in line
    )


def test_the_traceback_of_an_error_that_quotes_a_peer_is_indented(written: Log) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        written.log.exception("a fault of %s", "x\ny")
    first, *rest = written.lines
    assert first.endswith(r"a fault of x\ny")
    assert len(rest) > 3
    assert all(line.startswith("  ") and line.replace("\t", "").isprintable() for line in rest)


def test_a_long_name_is_cut(written: Log) -> None:
    written.log.info("%s", "x" * 1_000_000)
    (line,) = written.lines
    assert len(line) < MESSAGE_CHARS_MAX + 200
    assert line.endswith("… (995904 more characters)")


def test_one_call_site_writes_a_bounded_number_of_lines(written: Log) -> None:
    for number in range(LINES_MAX + 500):
        written.log.warning("END_TRANSACTION of %d", number)
        if number == 0:
            written.log.error("another one")
    assert len(written.lines) == LINES_MAX + 1
    written.now += INTERVAL_S
    for _ in range(2):
        written.log.warning("another site is not affected")
    for number in range(LINES_MAX + 1):
        if number == LINES_MAX:
            written.now += INTERVAL_S
        written.log.info("each site counts by itself %d", number)
    assert len(written.lines) == LINES_MAX + 1 + 2 + LINES_MAX + 1
    assert not written.lines[-1].endswith("left out)")


def test_the_next_line_of_a_site_says_how_many_were_left_out(written: Log) -> None:
    for number in range(LINES_MAX + 501):
        if number == LINES_MAX + 500:
            written.now += INTERVAL_S
        written.log.warning("refused %d", number)
    assert len(written.lines) == LINES_MAX + 1
    assert written.lines[-1].endswith("refused 700 (500 more lines like it left out)")


def test_debug_lines_are_all_written(written: Log) -> None:
    for number in range(LINES_MAX + 10):
        written.log.debug("%d", number)
    assert len(written.lines) == LINES_MAX + 10


def test_a_throttled_warning_counts_for_the_line_that_warns(written: Log) -> None:
    throttle = LogThrottle(written.log, lambda: written.now, interval_s=0.0)
    for _ in range(LINES_MAX + 10):
        throttle.warn("a", "first")
    throttle.warn("b", "second")
    assert written.lines[-1].endswith("second")


@pytest.fixture
def audit_lines(written: Log, monkeypatch: pytest.MonkeyPatch) -> Log:
    """The audit log of a console without --audit, whose process logs warnings only."""
    written.log.setLevel(logging.WARNING)
    own = logging.Logger("aerobee.console.audit")
    own.parent = written.log
    monkeypatch.setattr(console_audit, "log", own)
    return written


def test_no_audit_line_is_left_out(audit_lines: Log) -> None:
    audit = Audit(None, SystemClock())
    for number in range(LINES_MAX + 500):
        audit.write(
            user="root", address="::1", action="topic/delete", fields={"number": number}, result="done"
        )
    written = [json.loads(line[line.index("{") :]) for line in audit_lines.lines]
    assert [each["fields"]["number"] for each in written] == list(range(LINES_MAX + 500))


def test_a_long_audit_line_is_whole_json(audit_lines: Log) -> None:
    fields = {f"{number}\n\x1b[31m": "\U0001f600" * 500 for number in range(40)}
    Audit(None, SystemClock()).write(user=FORGED, address="::1", action="a", fields=fields, result="done")
    (line,) = audit_lines.lines
    assert line.isprintable()
    assert json.loads(line[line.index("{") :])["fields"] == fields


def test_every_command_logs_such_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert run_cli(["--version"]) == 0
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler.formatter, LineFormatter)
    assert [type(each) for each in handler.filters] == [LineThrottle]
