"""Every command that a message, a hint or a page of the console quotes is accepted as quoted by the command line."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.ops.commands import tree as commands
from aerobee.ops.options import shared_options

ROOT = Path(__file__).resolve().parents[4] / "aerobee"
QUOTED = re.compile(r"`(aerobee(?: [^`]+)?)`")
PLACEHOLDER = "1"  # for what is filled in: a name, a number or an address


def texts(node: ast.AST) -> Iterator[str]:
    """Strings of the code, without docstrings; what an f-string fills in is a placeholder."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else PLACEHOLDER
            for part in node.values
        )
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def quoted() -> dict[str, str]:
    """Command line -> the file that quotes it."""
    found: dict[str, str] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for text in texts(ast.parse(path.read_text())):
            for line in QUOTED.findall(re.sub(r"\{[a-z_.]*\}", PLACEHOLDER, text)):
                found.setdefault(line, str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "console" / "static").glob("*.js")):
        for line in re.findall(r"`(aerobee [^`$]+)`", path.read_text()):
            found.setdefault(line, path.name)
    return found


LINES = quoted()


def is_prose(line: str) -> bool:
    """A command without its arguments, an option among its words that stands for any, or a list of words."""
    return "…" in line or " OPTION" in line


@pytest.mark.parametrize("line", sorted(LINES), ids=lambda line: line)
def test_a_quoted_command_is_accepted(line: str) -> None:
    words = shlex.split(line.replace("HOST:PORT", "127.0.0.1:1"))[1:]
    if not words or words[0].startswith("-") or words[0] in (PLACEHOLDER, "COMMAND") or is_prose(line):
        return
    assert words[0] in commands.COMMANDS, f"{LINES[line]} quotes {line!r}"
    command: Any = commands._load(words[0])
    path, rest = words[0], words[1:]
    while (below := getattr(command, "commands", None)) and rest and not rest[0].startswith("-"):
        assert rest[0] in below, f"{LINES[line]} quotes {line!r}"
        command, path, rest = below[rest[0]], f"{path} {rest[0]}", rest[1:]
    if getattr(command, "commands", None):
        return  # a noun alone: it prints its commands
    shared_options.forget()
    try:
        command.make_context(path, rest)
    except Exception as error:
        # A command without any argument is the name of the command; options may be one placeholder.
        is_name = type(error).__name__ in ("MissingParameter", "UsageError") and not rest
        is_filled_in = rest[-1:] == [PLACEHOLDER] and "extra argument" in str(error)
        if not (is_name or is_filled_in or type(error).__name__ == "Exit"):
            pytest.fail(f"{LINES[line]} quotes {line!r}: {error}")
    finally:
        shared_options.forget()


def test_commands_are_found() -> None:
    assert len(LINES) > 50
