"""What a message may ask for, checked before it is sent: ack level, priority, delays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from aerobee.broker.state.ack_level import LEVELS
from aerobee.client.session.send_header import properties_text
from aerobee.errors import UsageError
from aerobee.message import ACK_LEVELS, Message
from aerobee.ops.terminal.ack_level import SENTENCES


def test_an_ack_level_travels_as_a_property() -> None:
    assert "ACK_LEVEL\x01flushed\x02" in properties_text(Message("T", b"x", ack="flushed"), "U")
    assert "ACK_LEVEL" not in properties_text(Message("T", b"x"), "U")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ack": "sure"}, "ack is 'sure': it must be one of stored, flushed, replicated"),
        ({"ack": 1}, "ack is 1: it must be one of"),
        ({"ack": "flushed", "wait_store_ok": False}, "excludes wait_store_ok=False"),
        ({"priority": 1, "delay_level": 2}, "priority excludes delay_level, deliver_at and deliver_after"),
        ({"priority": 1, "deliver_after": 5}, "priority excludes"),
        ({"priority": 0, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "priority excludes"),
        ({"deliver_at": 5, "deliver_after": 5}, "one of delay_level, deliver_at and deliver_after"),
    ],
)
def test_what_excludes_each_other_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Message("T", b"x", **fields)


def test_levels_have_one_name_in_client_broker_and_command_line() -> None:
    assert tuple(LEVELS) == tuple(SENTENCES) == ACK_LEVELS
    for name, sentence in SENTENCES.items():
        assert sentence.startswith(f"{name}: survives")
