"""What is installed by an extra's name."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# The package that brings a module, where the names differ.
BRINGS = {"yaml": "pyyaml"}
# What servers load only when it is there, by the extra that brings it.
WANTED_BY_SERVERS = {
    "uvloop": "fast",
    "cryptography": "tls",
    "aiohttp": "metrics",
    "rocksdict": "acl",
    "yaml": "acl",
}


def packages(extra: str) -> set[str]:
    """The packages of an extra, those of the extras that it names included."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        if inner := re.match(r"aerobee\[(.*)\]", requirement):
            for name in inner[1].split(","):
                found |= packages(name.strip())
        else:
            found.add(re.split(r"[<>=\[; ]", requirement)[0].lower())
    return found


def test_a_server_gets_all_that_it_wants_by_one_extra() -> None:
    for module, extra in WANTED_BY_SERVERS.items():
        package = BRINGS.get(module, module)
        assert package in packages(extra)
        assert package in packages("server")


def test_no_server_loads_a_package_that_its_extra_does_not_bring() -> None:
    always = {re.split(r"[<>=]", each)[0].lower() for each in PROJECT["dependencies"]}
    loaded: set[str] = set()
    for folder in ("broker", "nameserver", "remoting", "store", "access", "ha", "monitoring"):
        for path in (ROOT / "aerobee" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    loaded |= {each.name.split(".")[0] for each in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    loaded.add(node.module.split(".")[0])
    others = {
        name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("aerobee")
    }
    assert {BRINGS.get(name, name) for name in others} <= always | packages("server")
    assert "orjson" in others, "this test has to see something"


def test_the_package_says_where_it_lives() -> None:
    """The index shows these links beside the package; the release workflow publishes under this name."""
    urls = PROJECT["urls"]
    assert urls["Homepage"] == f"https://pypi.org/project/{PROJECT['name']}/"
    assert all(url.startswith("https://") for url in urls.values())
