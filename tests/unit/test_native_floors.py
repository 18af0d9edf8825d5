"""Holds the native code to the order of modules in native/src/lib.rs, by reading it: a file uses only those named above it."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "native" / "src"
MODULES = re.findall(r"^mod (\w+);", (SOURCE / "lib.rs").read_text(encoding="utf-8"), re.MULTILINE)
# Who writes to memory that Python lends, and what: records, queue entries and the log's end, of clients and of a master's log;
# index entries.
WRITERS = {"appender", "raw_appender", "index"}


def code_of(path: Path) -> str:
    """A file's text without comments."""
    return re.sub(r"//.*", "", path.read_text(encoding="utf-8"))


def used_by(code: str) -> set[str]:
    """The modules of this crate that a file names."""
    found = set(re.findall(r"\bcrate::(\w+)", code))
    for group in re.findall(r"\bcrate::\{([^}]*)\}", code):
        found |= {name.strip().split("::")[0] for name in group.split(",") if name.strip()}
    return found


def test_every_file_is_a_module_of_the_crate() -> None:
    assert sorted(path.stem for path in SOURCE.rglob("*.rs") if path.name != "lib.rs") == sorted(MODULES)


def test_files_use_only_those_above_them() -> None:
    layer = {name: number for number, name in enumerate(MODULES)}
    wrong = [
        f"{name}.rs uses {other}"
        for name in MODULES
        for other in used_by(code_of(SOURCE / f"{name}.rs"))
        if layer.get(other, len(MODULES)) >= layer[name]
    ]
    assert not wrong


def test_a_use_that_goes_up_is_seen() -> None:
    assert used_by("use crate::{binary_header, send};\nuse crate::backend::State; crate::pull::note()") == {
        "binary_header", "send", "backend", "pull",
    }  # fmt: skip


def test_the_appenders_alone_write_the_log() -> None:
    writers = {
        name
        for name in MODULES
        if name != "window" and re.search(r"\bwindow\s*\.write\(", code_of(SOURCE / f"{name}.rs"))
    }
    assert writers == WRITERS
    moves_end = {name for name in MODULES if re.search(r'"end"\), ', code_of(SOURCE / f"{name}.rs"))}
    assert moves_end == {"appender", "raw_appender"}
