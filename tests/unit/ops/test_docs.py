"""The documents say what the code does."""

import os
import re
import runpy
from pathlib import Path

import pytest

from aerobee.config import parse_properties
from aerobee.ops.ack_level import SENTENCES
from aerobee.ops.settings import broker_settings, nameserver_settings

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def run_check(script: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", [script, "--check"])
    namespace = runpy.run_path(str(ROOT / "scripts" / script))
    return int(namespace["main"]())


@pytest.mark.parametrize("script", ["config-table", "protocol-coverage", "settings-table"])
def test_generated_pages_are_current(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_check(script, monkeypatch) == 0, f"run scripts/{script}"


def test_each_ack_level_is_documented_with_its_sentence() -> None:
    text = (DOCS / "acknowledgements.md").read_text(encoding="utf-8")
    for sentence in SENTENCES.values():
        assert sentence in text


def test_examples_in_the_readme_are_the_files() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("first.py", "First.java", "first_cpp.py"):
        assert (DOCS / "examples" / name).read_text(encoding="utf-8").rstrip("\n") in readme, name


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
