"""What `aerobee top` shows: the order of its rows, and over what time a rate is."""

from __future__ import annotations

import pytest

from aerobee.ops.commands.cluster import disk_share
from aerobee.ops.diagnosis.top import Look, Sort, show, tables
from aerobee.ops.terminal.output import Output

BEFORE = Look(100.0, ends={"b": 10, "a": 100})
NOW = Look(104.0, ends={"b": 50, "a": 120, "new": 1}, lags={"x": (5, 9.0), "y": (70, 0.0), "z": (5, 2.0)})


@pytest.mark.parametrize(
    ("sort", "topics", "groups"),
    [
        (None, ["b", "a", "new"], ["y", "x", "z"]),
        ("rate", ["b", "a", "new"], ["x", "z", "y"]),
        ("size", ["a", "b", "new"], ["y", "x", "z"]),
        ("name", ["a", "b", "new"], ["x", "y", "z"]),
    ],
)
def test_rows_are_sorted_as_requested(sort: Sort | None, topics: list[str], groups: list[str]) -> None:
    found = tables(NOW, BEFORE, sort)
    assert [row["topic"] for row in found[0]] == topics
    assert [row["group"] for row in found[1]] == groups
    assert found[0][topics.index("b")]["in_tps"] == 10


def test_a_rate_says_over_what_time_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output(as_json=False), NOW, BEFORE)
    shown = capsys.readouterr().out
    assert "in/s (4 s)" in shown
    assert "out/s (1 min)" in shown
    show(Output(as_json=False), NOW, None)
    assert "in/s (next sample)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("runtime", "shown"),
    [({"commitLogDiskRatio": "0.54"}, "54%"), ({"commitLogDiskRatio": "-1"}, "-"), ({}, "-")],
)
def test_the_disk_is_a_percentage_as_in_the_console(
    runtime: dict[str, str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"broker": "b", "id": 0, "address": "h:1", "in_tps": 0.0, "out_tps": 0.0, "state": "up"}
    show(Output(as_json=False), Look(1.0, brokers=(row | {"disk": disk_share(runtime)},)), None)
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == [shown, "up"]
