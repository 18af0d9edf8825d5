"""The workflows in .github: what a release publishes."""

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
