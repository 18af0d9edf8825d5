"""What holds for every command: examples that are understood, exit code 2 for what is not, completion."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.ops.commands import tree as commands
from aerobee.ops.commands.examples import EXAMPLES
from aerobee.ops.commands.tree import run_cli
from aerobee.ops.diagnosis.top import Look, tables
from aerobee.ops.options import completion, shared_options
from aerobee.ops.terminal.progress import progress_text
from aerobee.ops.terminal.watching import WATCHED

# Options whose type is checked before anything is reached, with a value that is none.
WRONG_VALUES = {"IntRange": "many", "INT": "many", "FloatRange": "much"}


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for each, sub in below.items():
        yield from leaves(sub, f"{name} {each}")


LEAVES = [leaf for name in commands.COMMANDS for leaf in leaves(commands._load(name), name)]
PATHS = [path for path, _ in LEAVES]


def required(command: Any) -> list[str]:
    """Arguments that stand for all that must be given."""
    given = []
    for parameter in command.params:
        if parameter.required:
            value = "1" if "IntRange" in str(parameter.type) else "x"
            given += [value] if "Argument" in type(parameter).__name__ else [parameter.opts[0], value]
    return given


def test_every_command_has_examples_and_no_others_are_there() -> None:
    assert sorted(EXAMPLES) == sorted(PATHS)


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=PATHS)
def test_examples_are_understood_and_shown(path: str, command: Any) -> None:
    shared_options.forget()
    for line in EXAMPLES[path]:
        words = shlex.split(line)
        assert words[: 1 + len(path.split())] == ["aerobee", *path.split()]
        command.make_context(path, words[1 + len(path.split()) :])  # raises for what is not taken
        assert f"  {line}" in command.epilog
    shared_options.forget()


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=PATHS)
def test_help_names_types_and_effects_in_a_users_words(
    path: str, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([*path.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert not re.findall(r"<(?:str|text|path|int|integer|float|.* range)>", shown)
    for parameter in command.params:
        says = parameter.help or ""
        assert not re.match(r"(This|These|Only at)\b", says), f"{parameter.name}: {says!r} has no verb"
        if parameter.name == "data":
            assert parameter.metavar == "DIRECTORY"


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=PATHS)
def test_what_is_not_understood_ends_with_2(
    path: str, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words, needed = path.split(), required(command)
    lines = [[*words, *needed, "--no-such-option"], [*words, *needed, *["more"] * 40, "--nor-this"]]
    if needed:
        lines.append(words)
    for parameter in command.params:
        option = next((name for name in parameter.opts if name.startswith("--")), "")
        if not option:
            continue
        if not (getattr(parameter, "is_flag", False) or parameter.name == "help"):
            lines.append([*words, *needed, option])  # its value is missing
        wrong = WRONG_VALUES.get(type(parameter.type).__name__, "")
        if wrong:
            lines.append([*words, *needed, option, wrong])
    for line in lines:
        assert run_cli(line) == 2, line
        said = capsys.readouterr()
        assert "error:" in said.err, line
        assert "Traceback" not in said.err + said.out, line


def test_commands_that_show_something_can_be_watched() -> None:
    assert set(PATHS) >= WATCHED
    for path, command in LEAVES:
        assert ("watch" in {parameter.name for parameter in command.params}) == (path in WATCHED)


# --- completion, by the protocol that the scripts of typer speak


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    words = line.split(" ")
    monkeypatch.setenv("_AEROBEE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        run_cli([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("aerobee to", ["topic", "top"]),
        ("aerobee topic de", ["delete", "describe"]),
        ("aerobee up --pro", ["--profile"]),
        ("aerobee up --profile ", ["development", "production"]),
        ("aerobee broker --log-level w", ["warning"]),
        ("aerobee topic create orders --type f", ["FIFO"]),
        ("aerobee topic create orders --perm ", ["r", "rw", "w"]),
        ("aerobee group mode billing p", ["pop", "pull"]),
        ("aerobee consume orders --from l", ["last"]),
        ("aerobee offset reset billing --to ", ["earliest", "latest", "now", "offset:"]),
    ],
)
def test_the_shell_completes_commands_options_and_choices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, found: list[str]
) -> None:
    assert sorted(completed(monkeypatch, capsys, line)) == sorted(found)


def test_without_a_cluster_nothing_is_completed_and_nothing_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "ANSWER_S", 0.5)
    monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", "127.0.0.1:1")
    assert completed(monkeypatch, capfd, "aerobee topic describe o") == []
    assert capfd.readouterr().err == ""


# --- small cores


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((12_000, 3.0, 400, 1_000), "12,000 sent, 4,000/s, 40 %, 4 s left"),
        ((10, 2.0, 0, 0), "10 sent, 5/s"),
        ((0, 0.0, 0, 1_000), "0 sent, 0/s"),
        ((100, 10.0, 10, 1_000), "100 sent, 10/s, 1 %, 16 min left"),
        ((100, 10.0, 1_000, 1_000), "100 sent, 10/s, 100 %, 0 s left"),
        ((1, 100.0, 1, 1_000), "1 sent, 0/s, 0 %, 28 h left"),
    ],
)
def test_progress_says_rate_percent_and_time_left(values: tuple[int, float, int, int], text: str) -> None:
    assert progress_text(*values) == text


def test_top_sorts_by_rate_and_by_lag() -> None:
    before = Look(10.0, ends={"quiet": 500, "busy": 100, "gone": 7})
    now = Look(12.0, ends={"quiet": 500, "busy": 300, "new": 50}, lags={"a": (3, 1.0), "b": (900, 0.0)})
    topics, groups = tables(now, before)
    assert [(row["topic"], row["in_tps"]) for row in topics] == [
        ("busy", 100.0),
        ("quiet", 0.0),
        ("new", None),
    ]
    assert [row["group"] for row in groups] == ["b", "a"]
    assert all(row["in_tps"] is None for row in tables(now, None)[0])
