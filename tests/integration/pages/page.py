"""A page of docs/ as steps that can be run: commands with the output that the page shows, and blocks of Python.

A command is a line of an indented block that begins with `$ `; what follows it, up to the next command or an empty line,
is the output it shows. A comment in front of a block says what a reader sees, too, but a machine could not guess:

    <!-- not run: REASON -->            the block is left out
    <!-- run: COMMAND -->               is run and not shown; with ` &` at the end it runs until the page is done
    <!-- output: any order -->          the lines of each command may come in another order
    <!-- output: among others -->       further lines may stand between and around those that are shown
    <!-- output: figures differ -->     numbers are not compared

`output` takes several, separated by commas. A line `…` of an output stands for any lines. Core.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

COMMAND = re.compile(r"^( {4,})\$ (.*)$")
FENCE = re.compile(r"^```(\w*)\s*$")
COMMENT = re.compile(r"^<!-- (not run|run|output): (.*?) -->$")
KINDS = frozenset({"any order", "among others", "figures differ"})


class PageError(Exception):
    """A page is not written as the module's text says."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command line and what the page shows below it."""

    line: int  # counted from 1
    text: str
    shown: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset()
    hidden: bool = False
    not_run: str = ""


@dataclass(frozen=True, slots=True)
class Python:
    """A block of Python."""

    line: int
    text: str
    not_run: str = ""


@dataclass(slots=True)
class _Directives:
    """What comments said of the next block."""

    not_run: str = ""
    kinds: frozenset[str] = field(default_factory=frozenset)


Step = Command | Python


def steps(text: str) -> Iterator[Step]:
    """The steps of a page in its order. Raises PageError for a comment that says nothing known."""
    lines = text.splitlines()
    directives, at = _Directives(), 0
    while at < len(lines):
        line = lines[at]
        if comment := COMMENT.match(line):
            kind, said = comment.groups()
            if kind == "run":
                yield Command(at + 1, said, hidden=True)
            elif kind == "not run":
                directives.not_run = said
            else:
                directives.kinds = frozenset(part.strip() for part in said.split(","))
                if not directives.kinds <= KINDS:
                    raise PageError(f"line {at + 1}: output is one of {', '.join(sorted(KINDS))}")
            at += 1
        elif fence := FENCE.match(line):
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == "```"), len(lines))
            if fence[1] == "python":
                yield Python(at + 1, "\n".join(lines[at + 1 : end]) + "\n", directives.not_run)
            directives, at = _Directives(), end + 1
        elif command := COMMAND.match(line):
            at = yield from _block(lines, at, command[1], directives)
            directives = _Directives()
        else:
            if line.strip() and not line.startswith("    "):
                directives = _Directives()  # a comment belongs to the block that follows it directly
            at += 1


def _block(lines: list[str], at: int, indent: str, directives: _Directives) -> Generator[Step, None, int]:
    """The commands of one indented block; returns the line behind it."""
    end = at
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith("    ")):
        end += 1
    while at < end:
        found = COMMAND.match(lines[at])
        if found is None:
            at += 1
            continue
        begin, text = at, found[2]
        while text.endswith("\\"):
            at += 1
            text = text[:-1] + lines[at].strip()
        at += 1
        shown = []
        while at < end and lines[at].strip() and not COMMAND.match(lines[at]):
            shown.append(lines[at].removeprefix(indent))
            at += 1
        yield Command(begin + 1, text, tuple(shown), directives.kinds, not_run=directives.not_run)
    return end
