"""The build hook of the package: compiles native/ into the wheel where cargo is, and says which kind of package it builds.

    AEROBEE_BUILD_NATIVE   auto       (default) native when cargo can compile it, else pure Python
                           require    fail when the native module cannot be built; for releases and images
                           never      pure Python

A native wheel is tagged cp311-abi3-PLATFORM and serves every CPython from 3.11 on; a pure one is py3-none-any. Without
hatchling, `python hatch_build.py DIRECTORY` compiles the module into a directory, as scripts/make-native does with .venv.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    BuildHookInterface = object

VARIABLE = "AEROBEE_BUILD_NATIVE"
AUTO, REQUIRE, NEVER = "auto", "require", "never"
MODULE = "aerobee_native"
PYTHON_TAG = "cp311-abi3"  # of the feature abi3-py311 in native/Cargo.toml
# The oldest macOS that Rust's standard library supports, by processor.
MACOS_MIN = {"arm64": "11.0", "x86_64": "10.12"}


class NativeBuildFailed(RuntimeError):
    """AEROBEE_BUILD_NATIVE=require, and there is no native module."""


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc,valid-type,unused-ignore]
    """What hatchling calls before it makes a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the native module to the wheel. `version` is "standard" or "editable". Raises NativeBuildFailed."""
        if self.target_name != "wheel":
            return
        library, why = build_native(Path(self.root), os.environ.get(VARIABLE, ""))
        if library is None:
            self.app.display_warning(f"aerobee: a pure Python package, without the native fast path: {why}")
            return
        tag = f"{PYTHON_TAG}-{platform_tag()}"
        self.app.display_info(f"aerobee: a package with the native fast path ({tag})")
        build_data["pure_python"] = False
        build_data["tag"] = tag
        build_data["force_include"][str(library)] = module_file()


def build_native(root: Path, wanted: str) -> tuple[Path | None, str]:
    """Compile native/ of the checkout or sdist `root`; return (library, ""), or (None, why there is none).

    `wanted` is AEROBEE_BUILD_NATIVE. Raises NativeBuildFailed when it is "require", or no value that is known.
    """
    wanted = wanted or AUTO
    if wanted not in (AUTO, REQUIRE, NEVER):
        raise NativeBuildFailed(f"{VARIABLE} is {wanted!r}: it must be {AUTO}, {REQUIRE} or {NEVER}")
    if wanted == NEVER:
        return None, f"{VARIABLE} is {NEVER}"
    library, why = None, _what_is_missing(root)
    if not why:
        library, why = _compile(root / "native" / "Cargo.toml")
    if library is None and wanted == REQUIRE:
        raise NativeBuildFailed(f"{VARIABLE} is {REQUIRE}, and the native module cannot be built: {why}")
    return library, why


def _what_is_missing(root: Path) -> str:
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the native module is for CPython with a global interpreter lock"
    if not (root / "native" / "Cargo.toml").exists():
        return "native/Cargo.toml is missing"
    if shutil.which(_cargo()) is None:
        return "cargo is not in PATH; to have the native fast path, install Rust (https://rustup.rs) and install aerobee again"
    return ""


def _cargo() -> str:
    return os.environ.get("CARGO", "cargo")


def _compile(manifest: Path) -> tuple[Path | None, str]:
    """Run cargo, whose progress and errors go to standard error."""
    command = [_cargo(), "build", "--release", "--locked", "--lib", "--manifest-path", str(manifest)]
    done = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"],
        env=_environment(),
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    if done.returncode:
        return (
            None,
            f"cargo failed with status {done.returncode}; its message is above (pip shows it with -v)",
        )
    for line in reversed(done.stdout.splitlines()):
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == MODULE:
            # .so, .dylib or .dll; Windows has an import library beside it.
            found = [name for name in message["filenames"] if not name.endswith((".lib", ".pdb", ".dSYM"))]
            return Path(found[0]), ""
    return None, f"cargo names no library {MODULE}"


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    flags = []
    if sys.platform == "darwin":
        # Python's functions are in the program that loads the module.
        flags = ["-Clink-arg=-undefined", "-Clink-arg=dynamic_lookup"]
        environment.setdefault("MACOSX_DEPLOYMENT_TARGET", _macos_version())
    elif _is_musl():
        flags = ["-Ctarget-feature=-crt-static"]  # else Rust makes no shared library for musl
    if flags:
        environment["RUSTFLAGS"] = " ".join([environment.get("RUSTFLAGS", ""), *flags]).strip()
    if sys.platform == "win32":
        environment.setdefault("PYO3_PYTHON", sys.executable)
    else:
        # The stable ABI needs no interpreter, whose path differs from build to build and would have all compiled again.
        environment.setdefault("PYO3_NO_PYTHON", "1")
    return environment


def _is_musl() -> bool:
    return "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE") or sysconfig.get_config_var("SOABI") or "")


def _macos_version() -> str:
    return os.environ.get("MACOSX_DEPLOYMENT_TARGET") or MACOS_MIN[platform.machine()]


def platform_tag() -> str:
    """The last part of a native wheel's tag. On Linux auditwheel replaces it by a manylinux or musllinux one."""
    if sys.platform == "darwin":
        return f"macosx_{_macos_version().replace('.', '_')}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def module_file() -> str:
    """The name by which Python finds the module."""
    return f"{MODULE}.pyd" if sys.platform == "win32" else f"{MODULE}.abi3.so"


def main() -> None:
    directory = Path(sys.argv[1])
    library, _ = build_native(Path(__file__).resolve().parent, REQUIRE)
    assert library is not None
    target = directory / module_file()
    # A process that has the former one mapped must not see its bytes change.
    temporary = target.with_suffix(".tmp")
    shutil.copyfile(library, temporary)
    os.replace(temporary, target)


if __name__ == "__main__":
    main()
