"""Bodies of another party at a schema that refers to itself, or to items without bytes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from aerobee.client.serialize.avro import Avro
from aerobee.errors import UsageError

CHAIN: dict[str, Any] = {
    "type": "record",
    "name": "Chain",
    "fields": [{"name": "next", "type": ["null", "Chain"]}],
}
TREE: dict[str, Any] = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "children", "type": {"type": "array", "items": "Tree"}}],
}
PAIR: dict[str, Any] = {
    "type": "record",
    "name": "Pair",
    "fields": [
        {
            "name": "one",
            "type": {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]},
        },
        {"name": "other", "type": "Point"},
        {"name": "names", "type": {"type": "map", "values": "null"}},
        {"name": "more", "type": {"type": "array", "items": ["null", "Point"]}},
    ],
}
DEEP = """
from aerobee.client.serialize.avro import Avro
from tests.unit.client.serialize.test_avro_schema import CHAIN
try:
    Avro(CHAIN).deserialize(b"\\x02" * 60_000 + b"\\x00", {})
except RecursionError:
    print("refused")
"""


def test_deeply_nested_values_do_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (CHAIN, {"next": {"next": {"next": None}}}),
        (TREE, {"children": [{"children": []}, {"children": [{"children": []}]}]}),
        (
            PAIR,
            {"one": {"x": 1}, "other": {"x": 2}, "names": {"a": None}, "more": [None, {"x": 3}]},
        ),
        ({"type": "array", "items": "int"}, [1, 2, 3]),
        ("null", None),
    ],
)
def test_values_of_nested_schemas_are_read(schema: Any, value: Any) -> None:
    avro = Avro(schema)
    assert avro.deserialize(avro.serialize(value).body, {}) == value


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "Nothing", "fields": []},
        {"type": "record", "name": "Nulls", "fields": [{"name": "a", "type": "null"}]},
        {"type": "fixed", "name": "Zero", "size": 0},
    ],
)
def test_arrays_of_items_without_bytes_are_refused(items: Any) -> None:
    for schema in (
        {"type": "array", "items": items},
        {
            "type": "record",
            "name": "Outer",
            "fields": [{"name": "a", "type": {"type": "array", "items": items}}],
        },
    ):
        with pytest.raises(UsageError, match="items take no bytes"):
            Avro(schema)
