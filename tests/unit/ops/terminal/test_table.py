"""Tables and documents: a line ends at its last character, keys are in snake_case."""

from __future__ import annotations

import pytest

from aerobee.ops.terminal.output import Output, snake_keys

ROWS = [{"name": "a", "note": "long text"}, {"name": "bcd", "note": "x"}]


@pytest.mark.parametrize("colours", [False, True])
def test_no_line_of_a_table_ends_with_blanks(
    colours: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    Output(as_json=False).table(ROWS, {"name": "name", "note": "note"}, empty="", title="title")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert not line.replace("\x1b[0m", "").endswith(" "), repr(line)
    assert ("\x1b[" in lines[1]) is colours


def test_documents_of_servers_get_keys_in_snake_case() -> None:
    seen = {
        "leaderId": "n0",
        "brokerGroups": [{"isAlive": True, "brokers": [{"maxOffset": 7}]}],
        "term": None,
    }
    assert snake_keys(seen) == {
        "leader_id": "n0",
        "broker_groups": [{"is_alive": True, "brokers": [{"max_offset": 7}]}],
        "term": None,
    }
