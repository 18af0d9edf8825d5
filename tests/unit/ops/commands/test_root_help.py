"""`aerobee --help` fits one screen and names every command once."""

from __future__ import annotations

import pytest

from aerobee.ops.commands.root_help import GROUPS, root_help
from aerobee.ops.commands.tree import COMMANDS, run_cli


def test_every_command_has_one_line_in_one_group() -> None:
    named = [name for commands in GROUPS.values() for name in commands]
    assert sorted(named) == sorted(COMMANDS)
    assert list(GROUPS) == ["Use", "Operate", "Administer", "Measure"]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_help_fits_one_screen(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(arguments)
    shown = capsys.readouterr().out.splitlines()
    assert shown == root_help().splitlines()
    assert len(shown) <= 50
    assert max(map(len, shown)) <= 80
    assert sum("--tls-ca-file" in line for line in shown) == 1
