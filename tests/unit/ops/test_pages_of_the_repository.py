"""Pages in Markdown: every path that CONTRIBUTING.md names exists, and prose fits into 120 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WIDTH_MAX = 120
GUIDES = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "README.md")]
PAGES = [*GUIDES, *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"files.md", "mqadmin.md", "permissions.md", "protocol-coverage.md", "settings.md"}


def named_paths(text: str) -> Iterator[str]:
    """What stands between backticks and looks like a path of the repository."""
    for name in re.findall(r"`([\w./-]+)`", text):
        if "/" in name and not name.startswith((".venv/", "/")) and "NOUN" not in name:
            yield name


def test_every_path_that_the_guide_for_contributors_names_exists() -> None:
    for page in (
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / ".github" / "pull_request_template.md",
    ):
        names = list(named_paths(page.read_text(encoding="utf-8")))
        assert [name for name in names if not (ROOT / name).exists()] == [], page.name
    assert len(set(named_paths((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))) > 40


def test_every_make_target_that_the_guide_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([\w-]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert len(named) > 5
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_what_the_guide_calls_lists_are_lists() -> None:
    for path, name in (
        ("aerobee/access/needs.py", "RULES"),
        ("aerobee/ops/commands/tree.py", "COMMANDS"),
        ("aerobee/broker/admin/broker.py", "RESTART_KEYS"),
    ):
        assert re.search(rf"^{name}\b.*=", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), path


def wide_lines(text: str) -> list[int]:
    """Lines of prose wider than allowed: no tables, no blocks of code, no headings, no line that is one link."""
    found = []
    in_fence = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_fence = not in_fence
        is_prose = not in_fence and not line.startswith(("    ", "|", "#", "<!--", "\t"))
        if is_prose and len(line) > WIDTH_MAX and " " in line[:WIDTH_MAX].lstrip("-* "):
            found.append(number)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_fits_into_120_columns(page: Path) -> None:
    if page.name not in GENERATED:
        assert wide_lines(page.read_text(encoding="utf-8")) == []


def test_a_line_that_is_too_wide_is_found() -> None:
    wide = "word " * 30
    assert wide_lines(f"short\n{wide}\n| {wide} |\n```\n{wide}\n```\n    {wide}\n- {wide}") == [2, 8]


def test_the_site_has_every_page_once() -> None:
    """A page that the navigation lacks is found by search alone."""
    listed = re.findall(
        r"^ +- ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages), "add the page to `nav` in mkdocs.yml"
