"""One message is no "1 messages": what people read is counted by aerobee.words.plural, everywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.words import plural
from tests.integration.pages.compare import COUNTED
from tests.sources import nodes, tree_of

ROOT = Path(__file__).resolve().parents[2] / "aerobee"
READ_BY_PEOPLE = (
    *(
        path
        for name in ("ops", "console", "client", "spark", "testing")
        for path in (ROOT / name).rglob("*.py")
    ),
    *(ROOT / name for name in ("errors.py", "message.py", "config.py")),
)
NOUNS = "|".join(COUNTED.split())
COUNTED_HERE = re.compile(rf"^ (?:[a-z]+ )?(?:{NOUNS})e?s\b(?![-/])")
# What is too much is never one: "the body has 5000 bytes, at most 100 are allowed". Nor is what is compared with one.
TOO_MUCH = re.compile(
    r"^ \w+(?: \w+)?,? (?:at most|with|is cut off|does not decompress)|^ records?s?, not one"
)
# Bytes of a damaged record or frame, of which the smallest has 21.
OF_DAMAGE = ("client/base/received.py", "client/consumer/popped.py", "message.py")


def counted_by_hand(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each f-string that writes a number in front of a plural, but for bounds, which have names in capitals."""
    for node in nodes(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                continue
            said = str(text.value)
            shown = ast.unparse(value.value)
            is_bound = shown.rsplit(".", 1)[-1].isupper()
            if COUNTED_HERE.match(said) and not TOO_MUCH.match(said) and not is_bound:
                yield node.lineno, f"{{{shown}}}{said[:40]}"


def test_texts_that_people_read_count_with_the_one_function() -> None:
    found = [
        f"{path.relative_to(ROOT.parent)}:{line}: {text}"
        for path in READ_BY_PEOPLE
        if not str(path).endswith(OF_DAMAGE)
        for line, text in counted_by_hand(tree_of(path))
    ]
    assert found == []


def test_the_console_counts_with_the_one_function() -> None:
    by_hand = re.compile(r"\$\{[^{}]*\} (?:[a-z]+ )?(?:" + NOUNS + r")e?s\b|properties`")
    pages = [path for path in (ROOT / "console" / "static").glob("*.js") if path.name != "parts.js"]
    assert len(pages) > 3
    assert [
        f"{path.name}: {found[0]}"
        for path in pages
        for found in by_hand.finditer(path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ('f"{count} messages"', True),
        ('f"has {len(rows)} wrong answers"', False),  # no noun of the list
        ('f"{len(rows)} stored messages here"', True),
        ("f\"{plural(count, 'message')} here\"", False),
        ('f"at most {QUEUES_MAX} queues"', False),
        ('f"{name} has no message"', False),
        ('f"the body has {size} bytes, at most {limit} are allowed"', False),
    ],
)
def test_what_is_found(source: str, is_found: bool) -> None:
    assert bool(list(counted_by_hand(ast.parse(source)))) is is_found


def test_one_and_many() -> None:
    assert [plural(count, "message") for count in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    assert [plural(count, "try", "tries") for count in (1, 2)] == ["1 try", "2 tries"]
