"""The guide for contributors: every path, target and list that it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


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
