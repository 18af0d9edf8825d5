"""A command or option name of another tool leads to a hint with ours."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee.ops.commands import tree as commands
from aerobee.ops.commands.other_names import COMMANDS, OPTIONS, WORDS
from aerobee.ops.commands.tree import run_cli


def command_of(path: str) -> Any:
    first, *rest = path.split()
    found = commands._load(first)
    for name in rest:
        found = found.commands[name]
    return found


def assert_told(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(line.split()) == 2
    assert said in capsys.readouterr().err


def test_every_name_leads_to_a_command_of_ours_and_hides_none() -> None:
    for name, own in COMMANDS.items():
        assert command_of(own) is not None
        assert name not in commands.COMMANDS


@pytest.mark.parametrize(("name", "own"), sorted(COMMANDS.items()))
def test_a_command_of_another_tool_is_translated(
    name: str, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_told(f"{name} x", f"the equivalent is `aerobee {own}`", capsys)


def test_every_option_that_is_named_exists_somewhere() -> None:
    known = {
        option
        for own in {*COMMANDS.values(), "topic create"}
        for parameter in command_of(own).params
        for option in parameter.opts
    }
    assert {own.split()[0] for own in OPTIONS.values()} <= known
    assert not (set(OPTIONS) | set(WORDS)) & (known - {"--topic"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("consume orders --from-beginning", "use --from first"),
        ("topic list --bootstrap-server a:1", "use --nameserver"),
        ("send --topic orders x", "write the topic after the command"),
        ("--nameserver a:1 topic list", "write the options of a command after it"),
        ("-n a:1 topic list", "write the options of a command after it"),
        ("topic list --from-beginning", "`aerobee topic list --help` shows the accepted arguments"),
    ],
)
def test_an_option_of_another_tool_is_translated_where_ours_exists(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_told(line, said, capsys)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("context create prod", "use `aerobee context add`"),
        ("context remove prod", "use `aerobee context delete`"),
        ("dlq resend g", "use `aerobee dlq redrive`"),
        ("offset list g", "use `aerobee offset show`"),
        ("topic remove t", "use `aerobee topic delete`"),
        ("topic frobnicate t", "`aerobee topic --help` shows the accepted arguments"),
        ("send t x --delay 3", "use --deliver-after 3s"),
    ],
)
def test_another_word_for_a_command_of_a_group_is_understood(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_told(line, said, capsys)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topic create t --queues x", "'x' is not a whole number"),
        ("send t one two", "Unexpected extra arguments: two"),
        ("topic create t --type foo", "--type 'foo' must be one of NORMAL, FIFO"),
        ("topic update t --type foo --yes", "--type 'foo' must be one of NORMAL, FIFO"),
        ("broker --set nope=1", "unknown key nope; `aerobee broker -p`"),
    ],
)
def test_mistakes_are_told_in_words_of_people(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_told(line, said, capsys)
