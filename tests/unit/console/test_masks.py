"""Hidden fields of bodies: what is replaced, in which topics, and that nothing of an unknown form is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aerobee.console.masks import Masks, masked
from aerobee.errors import ConfigError


@pytest.mark.parametrize(
    ("body", "hidden"),
    [
        ({"card": {"number": "4711", "kind": "x"}}, {"card": {"number": "***", "kind": "x"}}),
        ({"card": [{"number": 1}, {"number": 2}]}, {"card": [{"number": "***"}, {"number": "***"}]}),
        ([{"card": {"number": {"deep": 1}}}], [{"card": {"number": "***"}}]),
        ({"card": "4711"}, {"card": "***"}),  # another form than expected: it may be the number
        ({"other": 1}, {"other": 1}),
        ("4711", None),
        (4711, None),
    ],
)
def test_fields_are_replaced(body: Any, hidden: Any) -> None:
    paths = Masks(["orders=card.number"]).paths_of(["orders"])
    found = masked(json.dumps(body).encode(), paths)
    assert found == b"***" if hidden is None else json.loads(found) == hidden


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\x00",
        b"card=4711",
        b'{"card": {"number": 1}',
        b"[" * 100_000,
        b"[" * 1_000 + b"]" * 1_000,
        b"[" + b"1," * 200_000 + b"1]",
    ],
    ids=["empty", "bytes", "form", "cut", "open", "deep", "large"],
)
def test_a_body_that_is_not_json_is_hidden_as_a_whole(body: bytes) -> None:
    assert masked(body, Masks(["orders=card.number"]).paths_of(["orders"])) == b"***"


def test_rules_apply_to_a_topic_its_pattern_and_its_retries() -> None:
    masks = Masks(["pay*=*", "orders=a,b.c"])
    assert masks.paths_of(["payments"]) == (("*",),)
    assert masks.paths_of(["orders"]) == (("a",), ("b", "c"))
    assert masks.paths_of(["%RETRY%billing", "orders"]) == (("a",), ("b", "c"))
    assert masks.paths_of(["other"]) == ()
    assert [masks.hides(topic) for topic in ("orders", "other", "%DLQ%billing", "%RETRY%x")] == [
        True,
        False,
        True,
        True,
    ]
    assert not Masks().hides("%DLQ%billing")


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "%LMQ%$orders$4711"]
)
def test_bodies_of_delayed_and_half_messages_and_of_lmqs_are_not_searched(topic: str) -> None:
    """A search for a text told whether a hidden field has it, one guess at a time."""
    assert Masks(["orders=card"]).hides(topic)
    assert not Masks().hides(topic)


@pytest.mark.parametrize(
    "spec", ["orders", "=a", "orders=", "orders=a,,b", "orders=a..b", "o=" + "a." * 65 + "b"]
)
def test_a_wrong_rule_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="--mask"):
        Masks([spec])
