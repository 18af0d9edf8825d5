"""Output of a command: tables and sentences for people, JSON for programs.

With --json standard output contains only JSON: one document (`document`, `table`) or one document per line (`line`). Notes,
progress and questions go to standard error in both forms, so that a pipe stays clean.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from aerobee.host_port import join_address
from aerobee.ops.terminal.terminal import STEERING, visible

if TYPE_CHECKING:
    from rich.console import Console

LINE_CHARS_MAX = 10_000
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TRAILING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")  # blanks, then the codes that end a style
_DECIMAL = re.compile(r"(\d)_(\d)")
_NOT_ESCAPED = re.compile(f"(?!\n)[{STEERING}]")  # JSON itself escapes characters below U+0020
JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS


class Share(float):
    """A part of a whole, 0 to 1: a percentage in tables, as in the console, and a number in JSON."""


class Output:
    """The output of one command. `as_json` chooses the form; every method supports both."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    @cached_property
    def console(self) -> Console:
        """Standard output."""
        return _console(stderr=False)

    @cached_property
    def notes(self) -> Console:
        """Standard error."""
        return _console(stderr=True)

    def table(
        self, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, empty: str, title: str = ""
    ) -> None:
        """Print rows. `columns` maps a row's key to its heading; JSON contains all keys of each row.

        `empty` is printed instead of a table without rows.
        """
        if self.as_json:
            self._write(list(rows))
            return
        if not rows:
            self.say(empty)
            return
        from rich.table import Table

        table = Table(
            title=visible(title) or None, title_justify="left", box=None, pad_edge=False, header_style="bold"
        )
        for key, heading in columns.items():
            numeric = all(isinstance(row.get(key), (int, float)) for row in rows)
            table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(cell_text(row.get(key)) for key in columns))
        with self.console.capture() as captured:
            self.console.print(table, markup=False)
        text = captured.get()
        # rich fills the last column: a line ends at its last character, so that files and selections hold no blanks.
        self.console.file.write("".join(_TRAILING.sub(r"\1", line) + "\n" for line in text.splitlines()))

    def facts(self, document: Mapping[str, Any], *, title: str = "") -> None:
        """Print one object: one line per key, or one JSON document."""
        if self.as_json:
            self._write(dict(document))
            return
        if title:
            self.console.print(visible(title), style="bold", markup=False)
        width = max((len(key) for key in document), default=0)
        for key, value in document.items():
            # p99_9_ms reads "p99.9 ms", in_tps "in/s", as the columns of tables do.
            heading = _DECIMAL.sub(r"\1.\2", key).replace("_tps", "/s").replace("_", " ")
            self.console.print(f"{heading:<{width}}  {cell_text(value)}", markup=False)

    def document(self, document: Any, sentence: str = "") -> None:
        """Print the document as JSON, or the sentence."""
        if self.as_json:
            self._write(document)
        elif sentence:
            self.say(sentence)

    def line(self, document: Mapping[str, Any], text: str) -> None:
        """Print one of many results, as a JSON document on one line or as text, and flush."""
        if self.as_json:
            self._write(dict(document))
        else:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def say(self, sentence: str, *, style: str = "") -> None:
        """Print a sentence of the result; omitted with --json."""
        if not self.as_json:
            self.console.print(visible(sentence), style=style, markup=False)

    def note(self, sentence: str, *, style: str = "dim") -> None:
        """Print a remark to standard error."""
        if sys.stderr.isatty() or "FORCE_COLOR" in os.environ:
            self.notes.print(visible(sentence), style=style, markup=False)
        else:
            sys.stderr.write(visible(sentence) + "\n")  # the same text, without loading rich for colours

    def _write(self, document: Any) -> None:
        sys.stdout.write(to_json(document) + "\n")
        sys.stdout.flush()


def _console(*, stderr: bool) -> Console:
    # Imported here: a server prints at most a line, and rich has 50 modules.
    from rich.console import Console

    # Wider than any screen: rich neither folds nor cuts lines, the terminal wraps them.
    return Console(stderr=stderr, width=LINE_CHARS_MAX, soft_wrap=True, highlight=False)


def snake_keys(document: Any, unchanged: Collection[str] = ()) -> Any:
    """A JSON document of a server with its keys as the command line writes them: brokerId becomes broker_id.

    The values of the keys in `unchanged` stay as they are: maps whose keys are a user's.
    """
    if isinstance(document, Mapping):
        return {
            _CAPITAL.sub("_", str(key)).lower(): value if key in unchanged else snake_keys(value, unchanged)
            for key, value in document.items()
        }
    return [snake_keys(each, unchanged) for each in document] if isinstance(document, list) else document


def to_json(document: Any) -> str:
    """JSON on one line. Dataclasses become objects; bytes become text if they are UTF-8, else hex; control characters are escaped."""
    text = orjson.dumps(document, default=_plain, option=JSON_OPTIONS).decode()
    return _NOT_ESCAPED.sub(lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    """The JSON escape; a surrogate pair for characters beyond U+FFFF."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def cell_text(value: object) -> str:
    """The text of a value in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Share):
        return f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(cell_text(part) for part in value) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{cell_text(key)}={cell_text(part)}" for key, part in value.items()) or "-"
    return visible(str(value))


def body_text(body: bytes) -> tuple[str, str]:
    """Return (text, encoding): encoding "utf-8", or "hex" if the bytes are not UTF-8."""
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return body.hex(), "hex"


def host_text(host: tuple[str, int]) -> str:
    """("ip", port) as text, an IPv6 address in brackets."""
    return join_address(*host)


def _plain(value: object) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return body_text(bytes(value))[0]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Share):
        return float(value)
    if isinstance(value, (int, str)):
        return int(value) if isinstance(value, int) else str(value)
    return str(value)
