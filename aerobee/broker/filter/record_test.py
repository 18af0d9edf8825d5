"""Translates a compiled SQL92 expression to one Python function over the bytes of a stored record.

A pull through a filter looks at every message between two that match, so the test must not decode a record: it finds
the properties text (layout in aerobee/message.py), looks for the names that the expression uses, and compares bytes.

Only TRUE matters, so three-valued logic needs no third value: each condition is written once, either as "this is TRUE"
or as "this is FALSE", and NOT turns one into the other. `TRUE(a AND b) = TRUE(a) and TRUE(b)`, `FALSE(a AND b) =
FALSE(a) or FALSE(b)`. Other expressions (a condition compared with another one, as in `(a > 1) = TRUE`, or a very long
text) are evaluated by sql92.py on decoded properties, with the same result.

The expression's own names and texts never become source: they are constants, given by number (K0, K1, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aerobee.broker.filter.sql92 import Node, Sql92Filter, to_floating, to_integer
from aerobee.errors import MalformedRecord
from aerobee.message import (
    HOSTS_V6,
    MAGIC_V1,
    decode_properties,
    decode_record,
    encode_properties,
)
from aerobee.record_head import HEAD_V4, field_at, field_end, head_struct

SOURCE_CHARS_MAX = 4096  # maximum length of an expression; compiling a longer one costs more than it saves
_BODY_SIZE = head_struct("body_size")

RecordTest = Callable[[bytes], bool]

_HEAD = """\
def test_text(record):
    at = 0
{body}
def test(record):
    if record[{sys_flag_byte_at}] & {long_address} or record[{magic_byte_at}] != {magic}:
        return slow_test(record)
    at = body_size(record, {body_size_at})[0] + {head}
    at += 2 + record[at]
{body}"""
# Finds the last pair of a name. `at` is the byte before the properties.
_FETCH = """\
    i = record.rfind({name}, at)
    if i < 0:
        {value} = get(record, at, {name}) if record.startswith({first}, at + 1) else None
    else:
        i += {length}
        e = record.find(B, i)
        {value} = record[i:e] if e > i else get(record, at, {name})
"""


@dataclass(frozen=True, slots=True)
class CompiledTest:
    """`record` tests a whole stored record, `text` a record's encoded properties with \\x02 in front."""

    record: RecordTest
    text: RecordTest


class _NotSimple(Exception):
    """The expression has a part that only sql92.py evaluates."""


def compile_test(compiled: Sql92Filter) -> CompiledTest:
    """Make the functions that tell whether the expression is TRUE for a record."""

    def text_by_tree(text: bytes) -> bool:
        return compiled.matches(decode_properties(text[1:].decode(errors="surrogateescape")))

    if len(compiled.expression) > SOURCE_CHARS_MAX:
        return CompiledTest(_on_records(text_by_tree), text_by_tree)
    writer = _Writer()
    try:
        body = writer.body(compiled.root)
    except _NotSimple:
        return CompiledTest(_on_records(text_by_tree), text_by_tree)
    constants: dict[str, Any] = {
        "B": b"\x02",
        "get": _get,
        "integer": _integer,
        "floating": _floating,
        "body_size": _BODY_SIZE.unpack_from,
        **writer.constants,
    }
    source = _HEAD.format(
        body=body,
        long_address=HOSTS_V6,
        magic=MAGIC_V1 & 0xFF,
        sys_flag_byte_at=field_end("sys_flag") - 1,
        magic_byte_at=field_end("magic") - 1,
        body_size_at=field_at("body_size"),
        head=HEAD_V4.size,
    )
    exec(compile(source, "<filter>", "exec"), constants)
    text_test: RecordTest = constants["test_text"]
    constants["slow_test"] = _on_records(text_test)
    record_test: RecordTest = constants["test"]
    return CompiledTest(record_test, text_test)


def _on_records(text_test: RecordTest) -> RecordTest:
    """The same test for records of any layout, by decoding them."""

    def test(record: bytes) -> bool:
        try:
            properties = decode_record(record, check_crc=False).properties
        except MalformedRecord:
            return False
        return text_test(b"\x02" + encode_properties(properties).encode(errors="surrogateescape"))

    return test


class _Writer:
    """Writes the source of one expression: the function searches each property once, at its first use."""

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}
        self._numbers: dict[object, str] = {}
        self._variables: dict[str, str] = {}
        self._fetched: set[str] = set()
        self._lines: list[str] = []

    def body(self, root: Node) -> str:
        """The lines of the function behind the one that finds the properties."""
        form = root.form
        if form and form[0] in ("and", "or"):
            # Side by side, so that a property which decides early spares looking for the others.
            is_or = form[0] == "or"
            for side in form[1]:
                condition = self._with_properties(side)
                self._lines.append(
                    f"    if {condition if is_or else f'not {condition}'}:\n        return {is_or}\n"
                )
            self._lines.append(f"    return {not is_or}\n")
        else:
            self._lines.append(f"    return {self._with_properties(root)}\n")
        return "".join(self._lines)

    def _with_properties(self, node: Node) -> str:
        condition = self.condition(node, wanted=True)
        for name in _names(node):
            variable = self._variables.get(name)
            if variable is not None and variable not in self._fetched:
                self._fetched.add(variable)
                key = encoded(f"{chr(2)}{name}{chr(1)}")
                self._lines.append(
                    _FETCH.format(
                        name=self._constant(key),
                        first=self._constant(key[1:]),
                        length=len(key),
                        value=variable,
                    )
                )
        return condition

    def _constant(self, value: object) -> str:
        key = (type(value), value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = f"K{len(self._numbers)}"
            self.constants[number] = value
        return number

    def _property(self, node: Node) -> str:
        assert isinstance(node.value, str)
        return self._variables.setdefault(node.value, f"v{len(self._variables)}")

    def _number(self, value: str, kind: str) -> str:
        """Source that reads a property, which is not None, as a number: None for an invalid number."""
        if kind == "integer":
            return f"(int({value}) if {value}.isdigit() and len({value}) < 19 else integer({value}))"
        return f"floating({value})"

    def condition(self, node: Node, *, wanted: bool) -> str:
        """Source that is true when the node is TRUE (`wanted`), or when it is FALSE."""
        if node.kind == "literal":
            return str(node.value is wanted)
        if node.kind == "property":  # alone it is a text: never TRUE
            return "False" if wanted else f"({self._property(node)} is not None)"
        form = node.form
        if form[0] in ("or", "and"):
            joint = " or " if (form[0] == "or") is wanted else " and "
            return "(" + joint.join(self.condition(side, wanted=wanted) for side in form[1]) + ")"
        if form[0] == "not":
            return self.condition(form[1], wanted=not wanted)
        if form[0] == "lone":
            return self.condition(form[1], wanted=wanted)
        if form[0] == "=":
            return self._equal(form[1], form[2], negate=form[3], wanted=wanted)
        if form[0] == "order":
            return self._order(form[1], form[2], form[3], wanted=wanted)
        if form[0] == "null":
            if form[1].kind != "property":
                raise _NotSimple
            return f"({self._property(form[1])} {'is' if form[2] is not wanted else 'is not'} None)"
        if form[0] == "in":
            value = self._property(form[1])
            texts = self._constant(frozenset(encoded(text) for text in form[2]))
            if form[3] is not wanted:
                return f"({value} in {texts})"
            return f"({value} is not None and {value} not in {texts})"
        return self._text_test(*form[1:], wanted=wanted)

    def _equal(self, left: Node, right: Node, *, negate: bool, wanted: bool) -> str:
        if left.kind != "property":
            left, right = right, left
        if left.kind != "property" or right.kind == "boolean":
            raise _NotSimple
        value = self._property(left)
        same = negate is not wanted
        if right.kind == "property":
            other = self._property(right)
            present = f"{value} is not None and {other} is not None"
            return f"({present} and {value} {'==' if same else '!='} {other})"
        if right.value is None:
            return "False"  # compared with NULL: neither TRUE nor FALSE
        if isinstance(right.value, str):
            text = self._constant(encoded(right.value))
            return f"({value} == {text})" if same else f"({value} is not None and {value} != {text})"
        if isinstance(right.value, bool):
            is_it = f"({value}.lower() == b'true') is {right.value}"
            return f"({value} is not None and {is_it if same else f'not ({is_it})'})"
        number = self._constant(right.value)
        read = self._number(value, "integer" if isinstance(right.value, int) else "floating")
        if not wanted:
            # A value that is no number makes both = and <> FALSE.
            test = f"(n := {read}) is None or n {'==' if negate else '!='} {number}"
            return f"({value} is not None and ({test}))"
        if not negate:
            return f"({value} is not None and {read} == {number})"
        return f"({value} is not None and (n := {read}) is not None and n != {number})"

    def _order(self, left: Node, operator: str, right: Node, *, wanted: bool) -> str:
        if "property" not in (left.kind, right.kind) or "boolean" in (left.kind, right.kind):
            raise _NotSimple
        is_whole = any(isinstance(side.value, int) for side in (left, right) if side.kind == "literal")
        kind = "integer" if is_whole else "floating"
        present, readable, numbers = [], [], []
        for side, number in ((left, "n"), (right, "m")):
            if side.kind == "literal":
                numbers.append(self._constant(side.value))
                continue
            value = self._property(side)
            present.append(f"{value} is not None")
            readable.append(f"({number} := {self._number(value, kind)}) is not None")
            numbers.append(number)
        compared = " and ".join([*readable, f"{numbers[0]} {operator} {numbers[1]}"])
        return f"({' and '.join(present)} and {compared if wanted else f'not ({compared})'})"

    def _text_test(self, left: Node, word: str, right: Node, negate: bool, *, wanted: bool) -> str:
        if left.kind != "property" or not (isinstance(right.value, str) and right.kind == "literal"):
            raise _NotSimple
        if not right.value:
            return str(not wanted)  # FALSE, also under NOT
        text, value = self._constant(encoded(right.value)), self._property(left)
        test = {
            "CONTAINS": f"{text} in {value}",
            "STARTSWITH": f"{value}.startswith({text})",
            "ENDSWITH": f"{value}.endswith({text})",
        }[word]
        if not wanted:  # a missing property makes it FALSE, not NULL
            return f"({value} is None or {test if negate else f'not ({test})'})"
        return f"({value} is not None and {f'not ({test})' if negate else test})"


def _names(node: Node) -> list[str]:
    """The properties that a node names, each once."""
    found: dict[str, None] = {}
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each.kind == "property":
            found[str(each.value)] = None
        for part in each.form:
            if isinstance(part, Node):
                waiting.append(part)
            elif isinstance(part, list):
                waiting.extend(part)
    return list(found)


def encoded(text: str) -> bytes:
    """The text as bytes, unpaired surrogates as they came."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")  # no stored text has such bytes


def _get(record: bytes, at: int, name: bytes) -> bytes | None:
    """The value of a property; `name` is \\x02name\\x01, `at` the byte before the properties. The last one counts."""
    text = b"\x02" + record[at + 1 :]
    stop = len(text)
    while (start := text.rfind(name, 0, stop)) >= 0:
        at = start + len(name)
        end = text.find(b"\x02", at)
        value = text[at:end] if end >= 0 else text[at:]
        if value:
            return value
        stop = start + 1  # an empty value counts as missing, so an earlier pair counts
    return None


def _integer(value: bytes) -> int | None:
    return to_integer(value.decode(errors="replace"))


def _floating(value: bytes) -> float | None:
    if value.isdigit() and len(value) < 16:
        return float(value)
    return to_floating(value.decode(errors="replace"))
