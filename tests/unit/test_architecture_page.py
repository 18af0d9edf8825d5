"""docs/architecture.md is true: every file that it names exists, and every package has its line."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = ("aerobee", "tests", "native", "docs", "scripts", "bench")
NAMED = re.compile(r"`([\w./-]+\.(?:py|pyi|rs|md))`")


def test_every_file_that_the_page_names_exists() -> None:
    files = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
    names = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert names
    missing = {name for name in names if not any(path == name or path.endswith(f"/{name}") for path in files)}
    assert missing == set()


def test_every_package_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    packages = {path.parent for path in (ROOT / "aerobee").rglob("*.py")} - {ROOT / "aerobee"}
    assert {path.name for path in packages if f"{path.name}/" not in text} == set()


def test_the_page_has_at_most_200_lines() -> None:
    assert PAGE.read_text(encoding="utf-8").count("\n") <= 200
