"""Rows of a DataFrame as messages: by columns, as row by row."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee.spark.sink_rows import SinkError, outgoing_row, outgoing_rows

COLUMNS: dict[str, list[Any]] = {
    "topic": ["a", "b", "a"],
    "key": ["k1 k2", None, ""],
    "value": [b"1", "zwei", b""],
    "tags": [None, "t", ""],
    "properties": [[("p", "1")], None, []],
    "message_group": ["s", None, ""],
    "dedup_key": [None, "d", ""],
}


@pytest.mark.parametrize("names", [("value",), ("topic", "value"), ("value", "key", "tags"), tuple(COLUMNS)])
@pytest.mark.parametrize("topic", ["", "orders"])
@pytest.mark.parametrize("prefix", [None, "query/7/3"])
def test_columns_give_what_each_row_gives(names: tuple[str, ...], topic: str, prefix: str | None) -> None:
    columns = {name: COLUMNS[name] for name in names}
    if not topic and "topic" not in columns:
        with pytest.raises(SinkError, match=r"row 40 of the task.* its topic is null"):
            list(outgoing_rows(columns, range(40, 43), topic=topic, dedup_prefix=prefix))
        return
    rows = [{name: column[at] for name, column in columns.items()} for at in range(3)]
    wanted = [outgoing_row(40 + at, row, topic=topic, dedup_prefix=prefix) for at, row in enumerate(rows)]
    assert list(outgoing_rows(columns, range(40, 43), topic=topic, dedup_prefix=prefix)) == wanted
    assert [each.number for each in wanted] == [40, 41, 42]


@pytest.mark.parametrize("more", [{}, {"key": [None, None]}])
def test_a_row_without_a_value_is_named(more: dict[str, list[Any]]) -> None:
    with pytest.raises(SinkError, match=r"row 8 of the task, for topic orders: its value is null"):
        list(outgoing_rows({"value": [b"x", None], **more}, range(7, 9), topic="orders"))
