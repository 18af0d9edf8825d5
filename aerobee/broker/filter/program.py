"""A compiled SQL92 expression as plain tuples, which the native backend evaluates over a stored record's bytes
(native/src/ pull/filter.rs). It has the same result as record_test.py; an expression that does not fit has no program,
and is evaluated in Python.

    (names, root)       names: the properties as bytes; a property is its number in them
    ("or", [nodes])  ("and", [nodes])  ("not", node)  ("constant", True, False or None)
    ("lone", p)                        FALSE, or NULL where it is missing
    ("null", p, negate)  ("in", p, [texts], negate)  ("text", p, word, text, negate)
    ("same_text", p, text, negate)  ("same_property", p, q, negate)  ("same_boolean", p, value, negate)
    ("same_integer", p, number, negate)  ("same_floating", p, number, negate)
    ("order", operator, is_integer, side, side)    a side: a property's number, or (number,)

Core.
"""

from __future__ import annotations

from typing import Any

from aerobee.broker.filter.record_test import SOURCE_CHARS_MAX, encoded
from aerobee.broker.filter.sql92 import Node, Sql92Filter

Program = tuple[list[bytes], tuple[Any, ...]]


class _NotSimple(Exception):
    """The expression has a part that only sql92.py evaluates."""


def program_of(compiled: Sql92Filter) -> Program | None:
    """Return the program, or None when the expression has none."""
    if len(compiled.expression) > SOURCE_CHARS_MAX:
        return None  # evaluated by Python too, on decoded properties
    writer = _Writer()
    try:
        root = writer.node(compiled.root)
    except _NotSimple:
        return None
    return list(writer.numbers), root


class _Writer:
    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def _property(self, node: Node) -> int:
        if node.kind != "property":
            raise _NotSimple
        return self.numbers.setdefault(encoded(str(node.value)), len(self.numbers))

    def node(self, node: Node) -> tuple[Any, ...]:
        if node.kind == "literal":
            return ("constant", node.value if isinstance(node.value, bool) else None)
        if node.kind == "property":
            return ("lone", self._property(node))
        kind, *parts = node.form
        if kind in ("or", "and"):
            return (kind, [self.node(side) for side in parts[0]])
        if kind == "not":
            return ("not", self.node(parts[0]))
        if kind == "lone":
            return ("lone", self._property(parts[0]))
        if kind == "null":
            return ("null", self._property(parts[0]), parts[1])
        if kind == "in":
            return ("in", self._property(parts[0]), sorted(map(encoded, parts[1])), parts[2])
        if kind == "=":
            return self._equal(*parts)
        if kind == "order":
            return self._order(*parts)
        left, word, right, negate = parts
        if not (isinstance(right.value, str) and right.kind == "literal"):
            raise _NotSimple
        return ("text", self._property(left), word, encoded(right.value), negate)

    def _equal(self, left: Node, right: Node, negate: bool) -> tuple[Any, ...]:
        if left.kind != "property":
            left, right = right, left
        if right.kind == "boolean":
            raise _NotSimple
        number = self._property(left)
        if right.kind == "property":
            return ("same_property", number, self._property(right), negate)
        if right.value is None:
            return ("constant", None)
        if isinstance(right.value, str):
            return ("same_text", number, encoded(right.value), negate)
        if isinstance(right.value, bool):
            return ("same_boolean", number, right.value, negate)
        _check_integer(right.value)
        return (
            "same_integer" if isinstance(right.value, int) else "same_floating",
            number,
            right.value,
            negate,
        )

    def _order(self, left: Node, operator: str, right: Node) -> tuple[Any, ...]:
        sides = (left, right)
        if "property" not in (left.kind, right.kind) or any(side.kind == "boolean" for side in sides):
            raise _NotSimple
        for side in sides:
            _check_integer(side.value)
        is_integer = any(isinstance(side.value, int) for side in sides if side.kind == "literal")
        return (
            "order",
            operator,
            is_integer,
            *((side.value,) if side.kind == "literal" else self._property(side) for side in sides),
        )


def _check_integer(value: object) -> None:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise _NotSimple
