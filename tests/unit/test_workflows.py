"""The workflows in .github: what a release publishes, and that no step fails or leaves tests out for want of a tool."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
ACTIONS = ROOT / ".github" / "actions"
PINNED = re.compile(r"[\w.-]+/[\w.-]+@(?:release/)?v\d+(?:\.\d+)*")


def steps() -> list[tuple[str, dict[str, Any]]]:
    """(file, step) of every workflow and every action of ours."""
    found = []
    for path in sorted(WORKFLOWS.glob("*.yml")):
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            found += [(path.name, step) for step in job.get("steps", [])]
    for path in sorted(ACTIONS.rglob("action.yml")):
        runs = yaml.safe_load(path.read_text(encoding="utf-8"))["runs"]
        found += [(path.name, step) for step in runs["steps"]]
    return found


def test_every_action_has_a_version() -> None:
    used = [(name, step["uses"]) for name, step in steps() if "uses" in step]
    assert len(used) > 10
    for name, action in used:
        if action.startswith("./"):
            assert (ROOT / action / "action.yml").is_file(), f"{name}: {action}"
        else:
            assert PINNED.fullmatch(action), f"{name}: {action}: name a version, not a branch"


def test_every_target_and_script_that_a_workflow_runs_exists() -> None:
    targets = set(
        re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    text = "\n".join(step["run"] for _, step in steps() if "run" in step)
    jobs = yaml.safe_load((WORKFLOWS / "ci.yml").read_text(encoding="utf-8"))["jobs"].values()
    matrix = [
        target for job in jobs for target in job.get("strategy", {}).get("matrix", {}).get("target", [])
    ]
    made = [*re.findall(r"\bmake ([a-z][\w-]*)", text), *matrix]
    assert {"unit", "chart", "docs", "kubernetes"} <= set(made) <= targets
    scripts = re.findall(r"(?<![\w/.])((?:\.ci|scripts)/[\w-]+)", text)
    assert {".ci/run", "scripts/sbom"} <= set(scripts)
    assert [name for name in scripts if not (ROOT / name).is_file()] == []


def test_hooks_run_programs_of_the_environment_on_every_python_file() -> None:
    """pre-commit finds Python by its first line, so `ruff check .` has to know the files that have no suffix."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0][
        "hooks"
    ]
    assert {hook["entry"].split()[0] for hook in hooks} == {".venv/bin/ruff", ".venv/bin/mypy"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = ("scripts", "deploy/image", ".ci")
    files = [
        path for folder in folders for path in (ROOT / folder).iterdir() if path.is_file() and not path.suffix
    ]
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if re.match(rb"#!.*python", path.read_bytes().partition(b"\n")[0])
    }
    assert ours == set(project["tool"]["ruff"]["extend-include"])


def test_no_job_of_a_release_publishes_anything_that_the_tests_have_not_passed() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]
    publishing = {name for name, job in jobs.items() if "write" in job.get("permissions", {}).values()}
    assert publishing == {"image", "chart", "docs", "publish"}
    for name in publishing:
        needs = jobs[name].get("needs", [])
        assert "held" in ([needs] if isinstance(needs, str) else needs), name


def test_every_step_of_ours_has_the_tools_that_it_wants() -> None:
    """Without cargo the native backend's tests are left out without an error; without Go, Node or Java the step fails."""
    jobs = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]
    for name, job in jobs.items():
        steps = [step.get("run") or step.get("uses") for step in job["steps"]]
        if (
            name == "platform"
        ):  # GitHub's images of macOS and Windows, which have Rust; no target of make runs there
            continue
        ours = next(at for at, step in enumerate(steps) if step.startswith(("make ", ".ci/")))
        assert "./.github/actions/tools" in steps[:ours], name
    tools = (WORKFLOWS.parent / "actions" / "tools" / "action.yml").read_text()
    for tool in ("rustup", "setup-go", "setup-node", "openjdk"):
        assert tool in tools


def test_a_release_has_native_wheels_and_a_pure_one_of_one_name() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]
    assert {"held", "pure", "native", "sbom"} <= set(jobs["publish"]["needs"])
    pure = [step for step in jobs["pure"]["steps"] if "python -m build" in step.get("run", "")]
    assert pure[0]["env"] == {"AEROBEE_BUILD_NATIVE": "never"}
    (build,) = [step for step in jobs["native"]["steps"] if "cibuildwheel" in step.get("uses", "")]
    assert "AEROBEE_BUILD_NATIVE=require" in build["env"]["CIBW_ENVIRONMENT"]
    assert "AEROBEE_BUILD_NATIVE=require" in build["env"]["CIBW_ENVIRONMENT_LINUX"]
    assert build["env"]["CIBW_TEST_ENVIRONMENT"] == "AEROBEE_FAST_PATH=native"
    platforms = {each["build"].partition("-")[2] for each in jobs["native"]["strategy"]["matrix"]["include"]}
    assert {"manylinux_x86_64", "musllinux_aarch64", "macosx_arm64"} <= platforms
    # What goes to the index is named dist-*; the list of components is not a distribution.
    uploads = [
        step["with"]["name"]
        for job in jobs.values()
        for step in job.get("steps", [])
        if "upload-artifact" in step.get("uses", "")
    ]
    assert [name for name in uploads if not name.startswith("dist-")] == ["sbom"]
