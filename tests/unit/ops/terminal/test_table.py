"""Tables: a line ends at its last character."""

from __future__ import annotations

import pytest

from aerobee.ops.terminal.output import Output

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
