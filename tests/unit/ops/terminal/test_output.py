import json

import pytest

from aerobee.client.base.results import QueueStats
from aerobee.message import MessageQueue
from aerobee.ops.terminal.output import Output, Share, body_text, cell_text, to_json
from aerobee.words import plural


def test_table_without_rows_says_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).table([], {"a": "A"}, empty="there is nothing")
    assert capsys.readouterr().out == "there is nothing\n"


def test_table_is_one_json_list(capsys: pytest.CaptureFixture[str]) -> None:
    Output(True).table([{"a": 1, "hidden": b"x"}], {"a": "A"}, empty="")
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "hidden": "x"}]


def test_long_cells_are_not_folded_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).table([{"a": "x" * 300, "b": "end"}], {"a": "A", "b": "B"}, empty="")
    assert "x" * 300 + "  end" in capsys.readouterr().out


def test_markup_in_values_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).facts({"topic": "[bold]x[/bold]"})
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_notes_stay_off_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    Output(True).note("working")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "working" in captured.err


def test_dataclasses_become_objects() -> None:
    stats = QueueStats(queue=MessageQueue("t", "broker-a", 1), min_offset=0, max_offset=5, last_update_ms=9)
    assert json.loads(to_json(stats))["queue"] == {"topic": "t", "broker_name": "broker-a", "queue_id": 1}


def test_a_share_is_a_percentage_and_a_number_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"disk": Share(0.537)}
    Output(False).table([row], {"disk": "disk"}, empty="")
    Output(False).facts(row)
    Output(True).document(row)
    assert capsys.readouterr().out.split() == ["disk", "54%", "disk", "54%", '{"disk":0.537}']


def test_cells_read_well() -> None:
    assert [cell_text(value) for value in (None, True, 1.5, ["a", "b"], {})] == [
        "-",
        "yes",
        "1.50",
        "a, b",
        "-",
    ]


def test_neither_a_key_nor_a_value_steers_the_terminal() -> None:
    assert cell_text({"\x1b[2J": "\x1b[1m", "a": ["\x07"]}) == r"\x1b[2J=\x1b[1m, a=\x07"


def test_neither_a_title_nor_json_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).facts({"id": 0}, title="DefaultCluster / a\x1b[2J\x9b1m")
    Output(False).table([{"id": 0}], {"id": "id"}, empty="", title="a\x1b]0;\x07")
    Output(True).line({"broker": "a\x1b[2J\x9b1m\x7f\u202e\U000e0041"}, "")
    out = capsys.readouterr().out
    assert [char for char in out if not char.isprintable() and char != "\n"] == []
    assert json.loads(out.splitlines()[-1]) == {"broker": "a\x1b[2J\x9b1m\x7f\u202e\U000e0041"}


def test_facts_name_rates_as_the_columns_of_tables_do(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).facts({"in_tps": 1.0, "out_tps": 0.5})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["in/s", "out/s"]


def test_body_that_is_no_text_is_hex() -> None:
    assert body_text(b"\xff\x00") == ("ff00", "hex")
    assert body_text("ä".encode()) == ("ä", "utf-8")


def test_plural_counts() -> None:
    assert [plural(count, "message") for count in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]


def test_facts_read_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).facts({"p99_9_ms": 1.5, "per_second": 2})
    assert [line.split("  ")[0].rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "p99.9 ms",
        "per second",
    ]
