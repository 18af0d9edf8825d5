"""Answers stay bounded, and what clients wrote stands under `untrusted`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aerobee.client import ReceivedMessage
from aerobee.contrib.mcp.answers import (
    ANSWER_CHARS_MAX,
    BODY_CHARS_MAX,
    KEYS_MAX,
    PROPERTIES_MAX,
    TEXT_CHARS_MAX,
    answer,
    message_document,
)
from tests.unit.contrib.mcp.received import received


def test_a_large_list_is_halved_until_it_fits() -> None:
    document = json.loads(answer({"rows": ["x" * 1_000] * 500, "other": [1, 2, 3]}))
    assert document["other"] == [1, 2, 3]
    assert len(document["rows"]) + document["left_out"]["rows"] == 500
    assert 20 < len(document["rows"]) < 60


def test_a_document_that_cannot_be_halved_is_an_error() -> None:
    text = answer({f"key{number}": "x" * TEXT_CHARS_MAX for number in range(100)})
    assert len(text) <= ANSWER_CHARS_MAX
    assert "larger than the limit" in json.loads(text)["error"]


def test_a_long_text_is_cut_wherever_it_stands() -> None:
    document = json.loads(answer({"a": [{"b": "x" * 3_000}], "body": "y" * 9_000}))
    assert document["a"][0]["b"] == "x" * TEXT_CHARS_MAX + "…"
    assert document["body"] == "y" * BODY_CHARS_MAX + "…"


def test_control_characters_are_escaped() -> None:
    text = answer({"body": "\x1b[2Ja\u202eb\u2066"})
    assert text.isascii()
    assert json.loads(text)["body"] == "\x1b[2Ja\u202eb\u2066"


def shown(message: ReceivedMessage, body_chars: int = 10) -> dict[str, Any]:
    document = message_document(message, body_chars)
    written: dict[str, Any] = document.pop("untrusted")
    assert not {"body", "properties", "keys", "tag", "message_id"} & set(document)
    return written


@pytest.mark.parametrize(
    ("body", "text", "encoding", "is_cut"),
    [
        (b"short", "short", "utf-8", False),
        (b"exactly 10", "exactly 10", "utf-8", False),
        (b"eleven char", "eleven cha", "utf-8", True),
        ("ü".encode() * 100, "ü" * 10, "utf-8", True),
        ("€".encode() * 100, "€" * 10, "utf-8", True),
        (b"a" + "€".encode() * 100, "a" + "€" * 9, "utf-8", True),
        ("🐝".encode() * 100, "🐝" * 10, "utf-8", True),
        (b"\xff\xfe", "fffe", "hex", False),
        (b"\xff" * 100, "ff" * 5, "hex", True),
        (b"abc\xff" + b"d" * 100, "616263ff64", "hex", True),
        (b"", "", "utf-8", False),
    ],
)
def test_a_body_is_cut_and_says_so(body: bytes, text: str, encoding: str, is_cut: bool) -> None:
    written = shown(received(body))
    assert (written["body"], written["body_encoding"], written["is_body_cut"]) == (text, encoding, is_cut)


def test_the_number_of_properties_and_keys_is_bounded() -> None:
    properties = {f"p{number}": "v" for number in range(200)}
    written = shown(received(b"", {**properties, "KEYS": " ".join(f"k{n}" for n in range(100))}))
    assert len(written["properties"]) == PROPERTIES_MAX
    assert len(written["keys"]) == KEYS_MAX
