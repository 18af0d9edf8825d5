"""--format of `aerobee consume`, and what reaches a terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.errors import UsageError
from aerobee.message import MessageQueue
from aerobee.ops.terminal.message_format import parse_format
from aerobee.ops.terminal.terminal import shown

MESSAGE: Any = SimpleNamespace(
    topic="orders",
    queue=MessageQueue("orders", "broker-a", 3),
    queue_offset=17,
    keys=("k1", "k2"),
    tag="paid",
    body=b"\x00body\xff",
    store_timestamp=1_795_229_733_873,
    message_id="ID",
    reconsume_times=2,
    properties={"a": "b", "region": "EU"},
)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("%s", b"\x00body\xff"),
        (r"%t/%b/%p@%o\n", b"orders/broker-a/3@17\n"),
        (r"%k\t%g\t%S %T %i %r\x00", b"k1 k2\tpaid\t6 1795229733873 ID 2\x00"),
        ("%h|%{region}|%{none}|%%", b"a=b,region=EU|EU||%"),
        (r"\\ä", "\\ä".encode()),
        ("", b""),
    ],
)
def test_form_is_filled_in_and_nothing_is_added(form: str, expected: bytes) -> None:
    assert parse_format(form)(MESSAGE) == expected


@pytest.mark.parametrize("form", ["%q", "%", "x%", "\\", r"\q", r"\x1"])
def test_unknown_part_of_a_form_is_named(form: str) -> None:
    with pytest.raises(UsageError, match="is unknown; known are %t"):
        parse_format(form)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"plain \xc3\xa4\ttext\n", b"plain \xc3\xa4\ttext\n"),
        (b"\x1b]0;title\x07\x1b[2J", rb"\x1b]0;title\x07\x1b[2J"),
        (b"over\rwritten\x7f", rb"over\x0dwritten\x7f"),
        (b"\xc2\x9b2J", rb"\x9b2J"),
        ("a\u202egpj.exe\u2066b\u200b".encode(), rb"a\u202egpj.exe\u2066b\u200b"),
        ("\u2028x\ufeff\U000e0041\xad".encode(), rb"\u2028x\ufeff\U000e0041\xad"),
        ("क्‍ष ‌👩‍💻 שלום".encode(), "क्‍ष ‌👩‍💻 שלום".encode()),
        (b"\xff\x9b", "��".encode()),
    ],
)
def test_nothing_that_steers_a_terminal_reaches_it(data: bytes, expected: bytes) -> None:
    assert shown(data) == expected
