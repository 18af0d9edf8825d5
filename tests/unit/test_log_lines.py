"""A log shows what peers put into it, but they add no line, steer no terminal and fill no disk."""

from __future__ import annotations

import io
import json
import logging
import weakref

import pytest

from aerobee.clock import SystemClock
from aerobee.console import audit as console_audit
from aerobee.console.audit import Audit
from aerobee.log_lines import (
    INTERVAL_S,
    LINES_MAX,
    MESSAGE_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
    LineFormatter,
    LineHandler,
    log_to,
)
from aerobee.log_throttle import LogThrottle
from aerobee.ops.commands.tree import run_cli

FORGED = "n9\n2026-11-26 15:00:00,000 CRITICAL aerobee.controller: FORGED \x1b[31m\u202e\r\x85"


class Log:
    """A logger with the handler of a process, and what it has written."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.now = 0.0
        self.log = logging.Logger("aerobee.test", logging.DEBUG)
        self.handler = log_to(self.stream, lambda: self.now)
        self.log.addHandler(self.handler)

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
    assert len(written.lines) == LINES_MAX + 1 + 1 + 2 + LINES_MAX + 1
    assert not [line for line in written.lines[LINES_MAX + 2 :] if "left out" in line]


def burst(log: logging.Logger, lines: int) -> None:
    for number in range(lines):
        log.warning("refused %d", number)


LEFT_OUT = f" WARNING aerobee.test: 500 lines left out, the first: refused {LINES_MAX}"


def test_the_next_line_of_any_site_says_how_many_were_left_out(written: Log) -> None:
    burst(written.log, LINES_MAX + 500)
    written.log.info("another site in the interval")
    assert len(written.lines) == LINES_MAX + 1
    written.now += INTERVAL_S
    written.log.debug("another site after it")
    assert len(written.lines) == LINES_MAX + 3
    assert written.lines[-2].endswith(LEFT_OUT)
    written.now += INTERVAL_S
    burst(written.log, LINES_MAX)
    assert len(written.lines) == 2 * LINES_MAX + 3, "it is said once, and each interval counts by itself"


def test_the_end_of_the_process_says_how_many_were_left_out(written: Log) -> None:
    burst(written.log, LINES_MAX + 500)
    written.handler.close()
    assert len(written.lines) == LINES_MAX + 1
    assert written.lines[-1].endswith(LEFT_OUT)
    written.handler.close()
    assert len(written.lines) == LINES_MAX + 1


def test_a_line_that_was_left_out_forges_no_line_and_keeps_no_object(written: Log) -> None:
    class Name:
        def __str__(self) -> str:
            return FORGED * 1_000

    for _ in range(LINES_MAX):
        written.log.warning("%s", "x")
    name = Name()
    gone = weakref.ref(name)
    handle = written.log.makeRecord
    for _ in range(LINES_MAX + 1):
        written.handler.handle(handle("n", logging.WARNING, "site.py", 1, "%s", (name,), None))
    del name
    assert gone() is None
    written.handler.close()
    assert written.lines[-1].isprintable()
    assert "1 lines left out, the first: n9" in written.lines[-1]
    assert len(written.lines[-1]) < 2 * MESSAGE_CHARS_MAX


def test_a_record_that_cannot_be_formatted_ends_no_caller(
    written: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(LINES_MAX + 2):
        written.log.warning("%d", "no number")
    assert written.lines == []
    assert "Logging error" in capsys.readouterr().err


def test_a_critical_line_is_never_left_out(written: Log) -> None:
    for number in range(LINES_MAX + 10):
        written.log.critical("cannot continue: %d", number)
    assert len(written.lines) == LINES_MAX + 10


def test_a_long_traceback_keeps_its_end_and_says_what_is_missing(written: Log) -> None:
    try:
        try:
            raise ValueError("begin" + "x" * 1_000_000)
        except ValueError as error:
            raise RuntimeError("the last error") from error
    except RuntimeError:
        written.log.exception("a fault")
    text = written.stream.getvalue()
    assert len(text) < TRACEBACK_CHARS_MAX + 1_000
    assert text.endswith("RuntimeError: the last error\n")
    assert "ValueError: beginxxx" in text
    (cut,) = [line for line in written.lines if "characters left out" in line]
    missing = int(cut.split("(")[1].split()[0])
    whole = sum(len(line) - 1 for line in written.lines[1:] if line is not cut)
    assert 1_000_000 < missing + whole < 1_002_000


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
    assert isinstance(handler, LineHandler)
    assert isinstance(handler.formatter, LineFormatter)
