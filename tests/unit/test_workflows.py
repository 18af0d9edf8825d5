"""The workflows in .github: what a release publishes, and that no step fails or leaves tests out for want of a tool."""

from __future__ import annotations

from pathlib import Path

import yaml

WORKFLOWS = Path(__file__).resolve().parents[2] / ".github" / "workflows"


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
