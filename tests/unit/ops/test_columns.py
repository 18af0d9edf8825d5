"""A column has one meaning: every heading of the commands' and the console's tables is defined once in docs/columns.md, with the
fields of JSON that it shows."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "columns.md"
ROW = re.compile(r"^\| ([^|`]+?) \| ((?:`\w+`(?:, )?)*) \| (.+) \|$", re.M)
COLUMN_NAMES = {"columns", "COLUMNS", "shown"}
CONSOLE_COLUMN = re.compile(r'(?:\["|: \[")([A-Z][\w %?()=/@-]*)", \((?:row|message)?\) => ')


def defined() -> dict[str, set[str]]:
    """Column -> fields, as the page has them; names are compared in lower case."""
    rows = ROW.findall(PAGE.read_text())
    names = [name.lower() for name, _, _ in rows]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)
    return {name.lower(): set(re.findall(r"`(\w+)`", fields)) for name, fields, _ in rows}


def of_commands() -> dict[str, set[str]]:
    """Heading -> keys of the rows, from the dictionaries that commands give to a table."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "aerobee" / "ops").rglob("*.py")):
        tree = ast.parse(path.read_text())
        tables = [
            node.args[1]
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "table"
            and len(node.args) > 1
        ]
        if not tables:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(each, ast.Name) and each.id in COLUMN_NAMES for each in targets):
                    tables.append(node.value)
        for each in (inner for table in tables for inner in ast.walk(table) if isinstance(inner, ast.Dict)):
            for key, heading in zip(each.keys, each.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(heading, ast.Constant):
                    found[plain(str(heading.value))].add(str(key.value))
    return found


def of_console() -> dict[str, set[str]]:
    """Heading -> fields of the rows that its cell reads, the first of each cell."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "aerobee" / "console" / "static").glob("*.js")):
        text = path.read_text()
        for match in CONSOLE_COLUMN.finditer(text):
            cell = re.split(r'\["[A-Z]|\n  \]|\n};', text[match.end() : match.end() + 400])[0]
            fields = re.findall(r"\b(?:row|message)\.(\w+)", cell)
            found[plain(match[1])] |= set(fields[:1])
    return found


def plain(heading: str) -> str:
    """In lower case, without the interval of a rate: in/s (10 s)."""
    return re.sub(r" \(.*\)$", "", heading).lower()


def test_every_column_has_one_definition() -> None:
    page, commands, console = defined(), of_commands(), of_console()
    assert len(commands) > 80
    assert len(console) > 60
    unknown = sorted(({*commands, *console} - {""}) - page.keys())
    assert unknown == [], "columns without a definition in docs/columns.md"
    assert sorted(page.keys() - commands.keys() - console.keys()) == [], "definitions without a column"


def test_a_column_shows_the_fields_of_its_definition_only() -> None:
    page = defined()
    for source in (of_commands(), of_console()):
        wrong = {name: fields - page[name] for name, fields in source.items() if name and fields - page[name]}
        assert wrong == {}, "columns with a second meaning"
