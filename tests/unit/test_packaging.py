"""What the package contains: extras, the native module, licences, the list of its components."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.sources import nodes_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# The package that brings a module, where the names differ.
BRINGS = {"yaml": "pyyaml", "google": "protobuf", "prometheus_client": "prometheus-client"}
# What servers load only when it is there, by the extra that brings it.
WANTED_BY_SERVERS = {
    "uvloop": "fast",
    "cryptography": "tls",
    "aiohttp": "metrics",
    "prometheus_client": "metrics",
    "rocksdict": "acl",
    "yaml": "acl",
    "google": "grpc",
    "cronsim": "schedule",
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


def test_grpc_is_served_without_h2() -> None:
    """Servers have their own HTTP/2 cores; the clients of the simulation and tests use h2."""
    assert packages("grpc") == {"protobuf"}
    assert "h2" not in packages("server")
    assert {"h2", "protobuf"} == packages("simulation")
    loading = [
        path.relative_to(ROOT / "aerobee").as_posix()
        for path in (ROOT / "aerobee").rglob("*.py")
        for node in nodes_of(path)
        if (isinstance(node, ast.Import) and any(each.name.split(".")[0] == "h2" for each in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "h2")
    ]
    assert set(loading) == {"simulation/grpc_calls.py"}


def test_no_server_loads_a_package_that_its_extra_does_not_bring() -> None:
    always = {re.split(r"[<>=]", each)[0].lower() for each in PROJECT["dependencies"]}
    loaded: set[str] = set()
    for folder in ("broker", "nameserver", "remoting", "store", "access", "ha", "monitoring"):
        for path in (ROOT / "aerobee" / folder).rglob("*.py"):
            for node in nodes_of(path):
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
    """The index shows these links next to the package; the release workflow publishes under this name."""
    urls = PROJECT["urls"]
    assert urls["Homepage"] == f"https://pypi.org/project/{PROJECT['name']}/"
    assert all(url.startswith("https://") for url in urls.values())


def build_hook() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "hatch_build.py"))


def lock() -> dict[str, str]:
    """Version by name of every crate in Cargo.lock."""
    packages = tomllib.loads((ROOT / "native" / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    return {each["name"]: each["version"] for each in packages}


def test_classifiers_name_each_python_that_ci_tests() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    tested = {"3.11", *jobs["python"]["strategy"]["matrix"]["version"]}
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert set(named) == tested == {"3.11", "3.12", "3.13", "3.14"}
    assert not any(each.startswith("License ::") for each in PROJECT["classifiers"]), (
        "an SPDX expression is given instead"
    )


def test_a_build_without_cargo_is_pure_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CARGO", raising=False)
    hook = build_hook()
    library, why = hook["build_native"](ROOT, "")
    assert library is None
    assert "cargo is not in PATH" in why
    with pytest.raises(
        hook["NativeBuildFailed"], match=r"AEROBEE_BUILD_NATIVE is require, and .* cargo is not in PATH"
    ):
        hook["build_native"](ROOT, "require")


def test_a_failing_compiler_gives_a_pure_package_unless_native_is_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cargo = tmp_path / "cargo"
    cargo.write_text("#!/bin/sh\nexit 101\n")
    cargo.chmod(0o755)
    monkeypatch.setenv("CARGO", str(cargo))
    hook = build_hook()
    assert hook["build_native"](ROOT, "auto") == (
        None,
        "cargo failed with status 101; its message is above (pip shows it with -v)",
    )
    with pytest.raises(hook["NativeBuildFailed"], match="status 101"):
        hook["build_native"](ROOT, "require")


def test_an_unknown_kind_of_build_is_refused_and_never_builds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hook = build_hook()
    assert hook["build_native"](ROOT, "never") == (None, "AEROBEE_BUILD_NATIVE is never")
    with pytest.raises(hook["NativeBuildFailed"], match=r"'yes'.*auto, require or never"):
        hook["build_native"](ROOT, "yes")


@pytest.mark.parametrize("library", [Path("/target/release/libaerobee_native.so"), None])
def test_a_wheel_has_the_tag_of_what_it_contains(library: Path | None) -> None:
    hook = build_hook()
    hook["CustomBuildHook"].initialize.__globals__["build_native"] = lambda root, wanted: (
        library,
        "no cargo",
    )
    said: list[str] = []
    app = SimpleNamespace(display_info=said.append, display_warning=said.append)
    data: dict[str, Any] = {"pure_python": True, "tag": None, "force_include": {}}
    wheel = SimpleNamespace(target_name="wheel", root=str(ROOT), app=app)
    hook["CustomBuildHook"].initialize(wheel, "standard", data)
    if library is None:
        assert data == {"pure_python": True, "tag": None, "force_include": {}}
        assert said == ["aerobee: a pure Python package, without the native fast path: no cargo"]
    else:
        assert data["tag"].startswith("cp311-abi3-linux_")
        assert data["force_include"] == {str(library): "aerobee_native.abi3.so"}
        assert said == [f"aerobee: a package with the native fast path ({data['tag']})"]


def test_the_source_archive_has_what_the_native_module_is_built_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/native/src", "/native/Cargo.toml", "/native/Cargo.lock", "/hatch_build.py"} <= set(included)
    for path in (*included, *PROJECT["license-files"]):
        assert (ROOT / path.removeprefix("/")).exists(), path


def test_licences_name_the_crates_of_the_lock_file() -> None:
    text = (ROOT / "native" / "THIRD_PARTY_LICENSES.txt").read_text(encoding="utf-8")
    named = dict(re.findall(r"^([a-z0-9_-]+) (\S+) \(https://crates\.io/", text, re.MULTILINE))
    assert named
    assert named.items() <= lock().items(), "run scripts/third-party"
    assert {"pyo3", "sha1", "crc32fast"} <= set(named)
    assert text.count("Permission is hereby granted, free of charge") > 5


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo names the crates that are linked")
def test_licences_are_those_of_the_linked_crates() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "third-party", "--check"], check=False)
    assert done.returncode == 0, "run scripts/third-party"


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo names the crates that are linked")
def test_the_bill_of_materials_is_cyclonedx_and_complete() -> None:
    pytest.importorskip("packaging")
    script = runpy.run_path(str(ROOT / "scripts" / "sbom"))
    document = script["bill_of_materials"](["tls", "metrics", "acl", "grpc", "schedule"], has_native=True)
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["metadata"]["timestamp"])
    root = document["metadata"]["component"]
    assert (root["type"], root["name"], root["version"]) == ("application", "aerobee", PROJECT["version"])
    components = document["components"]
    for each in components:
        assert each["type"] == "library"
        assert each["name"]
        assert (
            each["purl"]
            == each["bom-ref"]
            == f"pkg:{each['purl'].split('/')[0][4:]}/{each['name']}@{each['version']}"
        )
        assert each["licenses"], f"{each['name']} has no licence"
        for licence in each["licenses"]:
            assert licence.get("expression") or licence["license"]["name"]
    refs = [root["bom-ref"], *(each["bom-ref"] for each in components)]
    assert len(refs) == len(set(refs))
    assert {each["ref"] for each in document["dependencies"]} == set(refs), (
        "each component says what it needs"
    )
    assert {ref for each in document["dependencies"] for ref in each["dependsOn"]} == set(refs) - {
        root["bom-ref"]
    }
    names = {each["name"] for each in components}
    assert packages("server") - {"uvloop", "tzdata"} | {"orjson", "aerobee-native", "pyo3"} <= names
    crates = {each["name"]: each for each in components if each["purl"].startswith("pkg:cargo/")}
    assert {name: each["version"] for name, each in crates.items()}.items() <= lock().items()
    assert all(
        len(each["hashes"][0]["content"]) == 64 for name, each in crates.items() if name != "aerobee-native"
    )
    assert not any(
        each["purl"].startswith("pkg:cargo/")
        for each in script["bill_of_materials"]([], has_native=False)["components"]
    )
    assert json.loads(json.dumps(document)) == document
