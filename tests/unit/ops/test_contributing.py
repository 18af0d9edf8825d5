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
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path, name in (
        ("aerobee/access/needs.py", "RULES"),
        ("aerobee/ops/commands/tree.py", "COMMANDS"),
        ("aerobee/broker/admin/broker.py", "RESTART_KEYS"),
        ("aerobee/broker/admin/broker.py", "LIVE_STORE_KEYS"),
        ("aerobee/nameserver/config.py", "START_ONLY_KEYS"),
        ("aerobee/ha/controller/config.py", "CHANGEABLE_KEYS"),
        ("aerobee/metrics_config.py", "METRICS_START_KEYS"),
        ("tests/unit/layers.py", "ALLOWED_SIDEWAYS"),
        ("tests/unit/test_floors.py", "LOADED_WHEN_WANTED"),
    ):
        assert re.search(rf"^{name}\b.*=", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), path
        assert f"`{name}`" in text


def test_the_guide_names_every_file_with_settings() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "aerobee").rglob("*config.py")
        if re.search(
            r"^class \w*Config\b.*:\n(?:.*\n)*?.*raise ConfigError",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    assert len(files) > 6
    assert {name for name in files if f"`{name}`" not in text} == set()


def test_the_limits_that_the_guide_states_are_those_of_the_check() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    stated = re.search(r"A function has at most (\d+) lines, a file at most (\d+)", text)
    assert stated
    check = (ROOT / "tests" / "unit" / "test_floors.py").read_text(encoding="utf-8")
    assert f"if length > {stated[1]}:" in check
    assert f'text.count("\\n") > {stated[2]}:' in check
