"""The Rust crates that are linked into the native module, asked of cargo: for scripts/third-party and scripts/sbom.

Linked is what native/ needs at run time on any platform that a wheel is made for, without procedural macros and build scripts.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = Path(__file__).resolve().parents[1] / "native" / "Cargo.toml"
LOCK = MANIFEST.with_name("Cargo.lock")
ROOT_CRATE = "aerobee-native"
TARGETS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-musl",
    "x86_64-apple-darwin",
    "aarch64-apple-darwin",
)


@dataclass(frozen=True, order=True)
class Crate:
    """`folder` has its sources, `needs` the names of linked crates that it uses, `sha256` is of its archive at crates.io."""

    name: str
    version: str
    license: str  # an SPDX expression
    description: str
    folder: Path
    sha256: str
    needs: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:cargo/{self.name}@{self.version}"


def linked_crates() -> list[Crate]:
    """All of them, by name, with native/ itself (ROOT_CRATE, whose sha256 is empty). Raises CalledProcessError, FileNotFoundError without cargo."""
    found: dict[str, Any] = {}
    needs: dict[str, set[str]] = {}
    for target in TARGETS:
        metadata = _metadata(target)
        packages = {each["id"]: each for each in metadata["packages"]}
        nodes = {each["id"]: each for each in metadata["resolve"]["nodes"]}
        waiting = [metadata["resolve"]["root"]]
        found[waiting[0]] = packages[waiting[0]]
        while waiting:
            node = nodes[waiting.pop()]
            for each in node["deps"]:
                package = packages[each["pkg"]]
                is_normal = any(kind["kind"] is None for kind in each["dep_kinds"])
                if is_normal and not _is_macro(package):
                    needs.setdefault(node["id"], set()).add(package["name"])
                    if package["id"] not in found:
                        waiting.append(package["id"])
                    found[package["id"]] = package
    checksums = _checksums()
    return sorted(
        Crate(
            each["name"],
            each["version"],
            each["license"].replace("/", " OR "),
            " ".join((each["description"] or "").split()),
            Path(each["manifest_path"]).parent,
            checksums.get((each["name"], each["version"]), ""),
            tuple(sorted(needs.get(each["id"], ()))),
        )
        for each in found.values()
    )


def _metadata(target: str) -> dict[str, Any]:
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    done = subprocess.run([*command, "--manifest-path", MANIFEST], stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _is_macro(package: dict[str, Any]) -> bool:
    return any("proc-macro" in target["kind"] for target in package["targets"])


def _checksums() -> dict[tuple[str, str], str]:
    pattern = r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"'
    return {
        (name, version): sha256
        for name, version, sha256 in re.findall(pattern, LOCK.read_text(encoding="utf-8"))
    }
