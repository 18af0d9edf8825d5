"""Texts of the command line: times, positions, properties, queues."""

import time

import pytest

from aerobee.errors import UsageError
from aerobee.message import MessageQueue
from aerobee.ops.commands.consume import Start, host_text, parse_start
from aerobee.ops.commands.send import find_queue, parse_properties
from aerobee.ops.terminal.times import moment_ms, moment_text, span_ms

NOW = 1_795_229_733_873
QUEUES = (
    MessageQueue("t", "broker-a", 0),
    MessageQueue("t", "broker-a", 1),
    MessageQueue("t", "broker-b", 0),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", NOW - 900_000),
        ("1.5h", NOW - 5_400_000),
        ("250ms", NOW - 250),
        ("now", NOW),
        ("1795229733000", 1_795_229_733_000),
        ("2026-11-21T02:55:33Z", 1_795_229_733_000),
        ("2026-11-21T03:55:33+01:00", 1_795_229_733_000),
    ],
)
def test_moments_are_parsed(text: str, expected: int) -> None:
    assert moment_ms(text, NOW) == expected


def test_moment_that_is_none_names_the_forms() -> None:
    with pytest.raises(UsageError, match=r"'yesterday' is not a time.*15m"):
        moment_ms("yesterday", NOW)


def test_moment_is_shown_to_the_millisecond() -> None:
    assert moment_text(NOW) == "2026-11-21T02:55:33.873Z"
    assert moment_text(0) == "-"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first", Start("first")),
        ("earliest", Start("first")),
        ("latest", Start("last")),
        ("last", Start("last")),
        ("offset:12", Start("offset", 12)),
        ("1h", Start("time", NOW - 3_600_000)),
    ],
)
def test_start_of_consuming(text: str, expected: Start) -> None:
    assert parse_start(text, NOW) == expected


@pytest.mark.parametrize("text", ["offset:", "offset:-1", "offset:x", "whenever", ""])
def test_start_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--from"):
        parse_start(text, NOW)


def test_properties_are_split_at_the_first_equals_sign() -> None:
    assert parse_properties(["a=b=c", "d=e"]) == {"a": "b=c", "d": "e"}
    for wrong in ("a", "=b", "a="):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parse_properties([wrong])


def test_queue_is_found_by_broker_and_id() -> None:
    assert find_queue(QUEUES, "broker-b/0", "t") == QUEUES[2]
    assert find_queue(QUEUES, "1", "t") == QUEUES[1]


def test_queue_on_several_brokers_must_be_named_in_full() -> None:
    with pytest.raises(UsageError, match="is on several brokers; write BROKER/ID"):
        find_queue(QUEUES, "0", "t")
    with pytest.raises(UsageError, match=r"does not exist.*broker-a/0, broker-a/1"):
        find_queue(QUEUES, "broker-a/9", "t")


def test_host_of_ipv6_is_bracketed() -> None:
    assert host_text(("::1", 10911)) == "[::1]:10911"
    assert host_text(("127.0.0.1", 10911)) == "127.0.0.1:10911"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3s", 3_000), ("15m", 900_000), ("1h30m", 5_400_000), ("2d1h", 176_400_000), ("250ms", 250), ("1.5h", 5_400_000),
     ("90", 90_000), ("0.5", 500), ("0s", 0), ("1m30s500ms", 90_500)],
)  # fmt: skip
def test_spans_are_parsed_alike_everywhere(text: str, expected: int) -> None:
    assert span_ms(text) == expected
    assert moment_ms("now", NOW) - expected == NOW - span_ms(text)


@pytest.mark.parametrize("text", ["", "s", "1x", "-3s", "30m1h", "1 h", "1e9", "99999999999d", "inf", "nan"])
def test_what_is_no_span_names_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"write 500ms, 3s, 15m, 1h30m|100 years"):
        span_ms(text)


def test_moment_without_a_zone_is_utc_as_all_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment_ms("2026-11-21T02:55:33", NOW) == 1_795_229_733_000
        assert moment_ms(moment_text(NOW), 0) == NOW
    finally:
        monkeypatch.undo()
        time.tzset()
