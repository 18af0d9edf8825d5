"""docs/architecture.md is true: every file that it names is there, and every file of the larger packages has a room in it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = ("aerobee", "tests", "native", "docs", "scripts", "bench")
DESCRIBED = ("broker", "store", "remoting")
NAMED = re.compile(r"`([\w./-]+\.(?:py|pyi|rs|md))`")


def test_every_file_that_the_page_names_is_there() -> None:
    files = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
    names = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert names
    missing = {name for name in names if not any(path == name or path.endswith(f"/{name}") for path in files)}
    assert missing == set()


def test_every_file_of_the_larger_packages_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [
        str(path.relative_to(ROOT))
        for folder in DESCRIBED
        for path in sorted((ROOT / "aerobee" / folder).rglob("*.py"))
        if path.name != "__init__.py"
        and path.parent.name != "body"
        and not re.search(rf"\b{re.escape(path.name)}", text)
    ]
    assert missing == []
