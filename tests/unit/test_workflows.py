"""The workflows in .github: what a release publishes, and that no step fails or leaves tests out for want of a tool."""

from __future__ import annotations

from pathlib import Path

import yaml

WORKFLOWS = Path(__file__).resolve().parents[2] / ".github" / "workflows"


def test_no_job_of_a_release_publishes_anything_that_the_tests_have_not_passed() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]
    publishing = {name for name, job in jobs.items() if "write" in job.get("permissions", {}).values()}
    assert publishing == {"image", "chart", "publish"}
    for name in publishing:
        needs = jobs[name].get("needs", [])
        assert "held" in ([needs] if isinstance(needs, str) else needs), name


def test_every_step_of_ours_has_the_tools_that_it_wants() -> None:
    """Without cargo the native backend's tests are left out without an error; without Go, Node or Java the step fails."""
    jobs = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]
    for name, job in jobs.items():
        steps = [step.get("run") or step.get("uses") for step in job["steps"]]
        ours = next(at for at, step in enumerate(steps) if step.startswith(("make ", ".ci/")))
        assert "./.github/actions/tools" in steps[:ours], name
    tools = (WORKFLOWS.parent / "actions" / "tools" / "action.yml").read_text()
    for tool in ("rustup", "setup-go", "setup-node", "openjdk"):
        assert tool in tools
