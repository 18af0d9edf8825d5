"""docs/architecture.md is true: every file that it names exists, and every package has its line."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.layers import ALLOWED_SIDEWAYS
from tests.unit.package_imports import imports_of

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


def broker_lines() -> list[list[str]]:
    """The folders of broker/ as the page draws them, top line first."""
    picture = PAGE.read_text(encoding="utf-8").split("### broker/\n")[1].split("\n### ")[0]
    rows = [line[:39] for line in picture.split("\n") if line.startswith("    ")]
    return [[name.removesuffix("/") for name in row.split()] for row in rows]


def test_a_folder_of_the_broker_imports_from_lines_below_it() -> None:
    lines = broker_lines()
    line_of = {name: number for number, names in enumerate(lines) for name in names}
    folders = {path.parent.name for path in (ROOT / "aerobee" / "broker").glob("*/*.py")}
    assert folders == line_of.keys()
    wrong = set()
    for folder in folders:
        for path in (ROOT / "aerobee" / "broker" / folder).glob("*.py"):
            for found in imports_of(path):
                parts = found.module.split(".")
                target = parts[2] if parts[:2] == ["aerobee", "broker"] and len(parts) > 2 else folder
                if target != folder and line_of[target] <= line_of[folder]:
                    wrong.add((folder, target))
    assert wrong == set()


def test_the_page_names_each_exception_of_the_layers() -> None:
    sentence = PAGE.read_text(encoding="utf-8").split("`ALLOWED_SIDEWAYS`")[1].split("\n\n")[0]
    named = set()
    for clause in re.split(r"[;.] ", " ".join(sentence.split())):
        part, imports, targets = clause.partition(" imports ")
        if imports:
            source = re.findall(r"`(\w+)/`", part)[-1]
            named |= {(source, target) for target in re.findall(r"`(\w+)/`", targets)}
    assert named == ALLOWED_SIDEWAYS


def test_a_file_that_the_page_names_is_one_file() -> None:
    files = {
        str(path.relative_to(ROOT))
        for folder in ("aerobee", "native")
        for path in (ROOT / folder).rglob("*.*")
    }
    names = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    ambiguous = {name for name in names if sum(path.endswith(f"/{name}") for path in files) > 1}
    assert ambiguous == set()


def test_the_page_says_how_many_walks_it_shows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text.split("## Four messages, eight walks")[1].split("\n## ")[0]
    walks = re.findall(r"^    ([\w, ]+): remoting/", section, re.MULTILINE)
    assert len(walks) == 8
    assert len({walk.removesuffix(", fast path") for walk in walks}) == 4
