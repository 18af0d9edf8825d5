"""The documents say what the code does."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerobee.config import parse_properties
from aerobee.ops.commands import tree as commands
from aerobee.ops.settings.settings import broker_settings, nameserver_settings
from aerobee.ops.terminal.ack_level import SENTENCES

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def run_check(script: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", [script, "--check"])
    namespace = runpy.run_path(str(ROOT / "scripts" / script))
    return int(namespace["main"]())


@pytest.mark.parametrize(
    "script",
    [
        "config-table",
        "fast-path-table",
        "file-inventory",
        "grpc-table",
        "mqadmin-table",
        "protocol-coverage",
    ],
)
def test_generated_pages_are_current(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_check(script, monkeypatch) == 0, f"run scripts/{script}"


def test_each_ack_level_is_documented_with_its_sentence() -> None:
    text = (DOCS / "acknowledgements.md").read_text(encoding="utf-8")
    for sentence in SENTENCES.values():
        assert sentence in text


def test_examples_in_the_pages_are_the_files() -> None:
    clients = DOCS / "rocketmq-clients.md"
    for page, name in (
        (ROOT / "README.md", "first.py"),
        (clients, "First.java"),
        (clients, "first_cpp.py"),
    ):
        example = (DOCS / "examples" / name).read_text(encoding="utf-8").rstrip("\n")
        assert example in page.read_text(encoding="utf-8"), name


def test_programs_of_grpc_clients_are_those_that_run() -> None:
    """tests/interop/test_grpc_hello.py runs them."""
    page = (DOCS / "grpc-clients.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```(java|go|python|js|rust)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    programs = {
        "java": "java-grpc/Hello.java",
        "go": "go-grpc/hello/main.go",
        "python": "grpc/hello.py",
        "js": "node-grpc/hello.js",
        "rust": "rust-grpc/src/bin/hello.rs",
    }
    interop = ROOT / "tests" / "interop"
    assert dict(shown) == {
        language: (interop / name).read_text(encoding="utf-8") for language, name in programs.items()
    }


def test_the_readme_has_the_figures_of_the_measurements() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "readme-figures", "--check"], check=True)


def test_samples_with_every_key_set_are_taken(tmp_path: Path) -> None:
    for name, read in (("broker.conf", broker_settings), ("namesrv.conf", nameserver_settings)):
        lines = (DOCS / "samples" / name).read_text(encoding="utf-8").splitlines()
        settings = [line[1:] for line in lines if re.match(r"#[A-Za-z0-9.]+=.+", line)]
        assert len(parse_properties("\n".join(settings), name)) > 10
        path = tmp_path / name
        path.write_text("\n".join(settings), encoding="utf-8")
        read(path=str(path), environ={})


def test_links_in_the_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                assert os.path.exists(page.parent / target), f"{page}: {target}"


def test_decisions_are_numbered_without_gaps_and_dated() -> None:
    pages = sorted((DOCS / "decisions").glob("*.md"))
    for number, page in enumerate(pages, start=1):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert page.name.startswith(f"{number:04d}-"), page.name
        assert lines[0].startswith(f"# {number}. "), page.name
        assert ":" not in lines[0], (
            f"{page.name}: the title is the decision, without a subject in front of it"
        )
        assert re.fullmatch(r"Date: \d{4}-\d\d-\d\d · Status: accepted", lines[2]), page.name


PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
NAMES_TOPIC = {"create", "update", "describe", "stats", "delete"}


def commands_of(page: Path) -> list[list[str]]:
    """The command lines of a page, in its order, without what follows a pipe."""
    lines = re.findall(r"^ +\$ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    found = []
    for line in lines:
        first, _, second = line.partition(" | ")
        part = second if second.startswith("aerobee") else first
        try:
            found.append(shlex.split(part.split(" && ")[0], comments=True))
        except ValueError:
            found.append(part.split())
    return found


def topics_of(page: Path) -> set[str]:
    """The topics that a page's commands and examples make or use."""
    found = set()
    for words in commands_of(page):
        if words[:1] == ["aerobee"] and len(words) > 2 and words[1] in ("send", "consume"):
            found.add(words[2])
        elif words[:2] == ["aerobee", "topic"] and len(words) > 3 and words[2] in NAMES_TOPIC:
            found.add(words[3])
        for word in words:
            example = ROOT / word
            if word.startswith("docs/examples/") and example.exists():
                text = example.read_text(encoding="utf-8")
                found |= set(
                    re.findall(r'(?:Message\(\s*|subscriptions=\{|TOPIC\s*=\s*)"([A-Za-z][\w-]*)"', text)
                )
    return {name for name in found if not name.startswith(("-", "TOPIC", "%"))}


def test_no_page_meets_the_topics_of_another() -> None:
    """Else what a page shows depends on which was tried before it."""
    pages: dict[str, set[str]] = {}
    for page in PAGES:
        for topic in topics_of(page):
            pages.setdefault(topic, set()).add(page.name)
    assert len(pages) > 15
    assert {topic: names for topic, names in pages.items() if len(names) > 1} == {}


def test_the_mode_of_a_group_is_set_after_its_topic_is_made() -> None:
    made: set[str] = set()
    for words in commands_of(DOCS / "pop.md"):
        if words[1:3] == ["topic", "create"]:
            made.add(words[3])
        if words[1:3] == ["group", "mode"]:
            assert words[words.index("--topic") + 1] in made


@pytest.mark.parametrize("path", sorted((DOCS / "examples").glob("*.*")), ids=lambda path: path.name)
def test_every_example_reads_the_address_from_the_environment(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if "127.0.0.1:9876" in line:
            assert "AEROBEE_NAMESRV_ADDR" in line, line


def test_command_lines_of_the_pages_are_understood() -> None:
    """What a page tells to type is taken by the command of today: names of commands and options."""
    checked = 0
    for page in PAGES:
        for words in commands_of(page):
            if words[:1] != ["aerobee"] or len(words) < 2 or words[1] not in commands.COMMANDS:
                continue
            command: Any = commands._load(words[1])
            rest = words[2:]
            while rest and rest[0] in getattr(command, "commands", {}):
                command, rest = command.commands[rest[0]], rest[1:]
            known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            options = [word.split("=")[0] for word in rest if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word)]
            assert set(options) <= known | {"--help"}, f"{page.name}: aerobee {' '.join(words[1:])}"
            checked += 1
    assert checked > 80


def test_a_version_of_the_changelog_is_a_page_of_groups() -> None:
    """What users notice, in groups. Of the first version nothing was wrong before: it has nothing that was fixed."""
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for version in versions:
        name, _, text = version.partition("\n")
        groups = re.findall(r"^### (.*)$", text, re.MULTILINE)
        assert text.count("\n") <= 150, f"{name}: group the entries and leave out what no user notices"
        assert len(groups) == len(set(groups)) > 1, name
    first = versions[-1]
    assert first.startswith("0.1.0")
    assert "### Fixed" not in first


WIDTH_MAX = 120
GUIDES = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "README.md")]
PROSE = [*GUIDES, *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {
    "fast-path.md",
    "files.md",
    "mqadmin.md",
    "permissions.md",
    "protocol-coverage.md",
    "settings.md",
}


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


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
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
