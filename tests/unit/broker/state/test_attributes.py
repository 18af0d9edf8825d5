"""Attribute changes of topics and groups."""

from __future__ import annotations

import pytest

from aerobee.broker.state.attributes import TOPIC_ATTRIBUTES, apply_changes, parse_changes
from aerobee.errors import UsageError


def test_changes_are_signed_and_stored_without_sign() -> None:
    changes = parse_changes("+message.type=FIFO, +reserve.time=-1")
    assert changes == {"+message.type": "FIFO", "+reserve.time": "-1"}
    assert apply_changes({}, changes, TOPIC_ATTRIBUTES, creating=True) == {
        "message.type": "FIFO",
        "reserve.time": "-1",
    }
    assert parse_changes("") == {}


def test_an_attribute_can_be_removed_and_replaced() -> None:
    stored = {"message.type": "FIFO", "reserve.time": "5"}
    changed = apply_changes(
        stored, parse_changes("-reserve.time,+message.type=NORMAL"), TOPIC_ATTRIBUTES, creating=False
    )
    assert changed == {"message.type": "NORMAL"}


@pytest.mark.parametrize("text", ["message.type=FIFO", "+message.type", "-message.type=FIFO", "+a=1,+a=2"])
def test_a_change_that_is_not_signed_right_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_changes(text)


@pytest.mark.parametrize(
    ("changes", "creating", "reason"),
    [
        ({"+no.such": "1"}, True, "not known"),
        ({"+message.type": "fifo"}, True, "one of"),
        ({"+reserve.time": "soon"}, True, "a number"),
        ({"-message.type": ""}, True, "cannot be removed"),
        ({"-message.type": ""}, False, "not set"),
        ({"+queue.type": "BatchCQ"}, False, "cannot be changed"),
        ({"message.type": "FIFO"}, True, "begins with"),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_allowed(
    changes: dict[str, str], creating: bool, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        apply_changes({}, changes, TOPIC_ATTRIBUTES, creating=creating)
