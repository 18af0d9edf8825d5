"""What `make quick` runs: every unit test but a few that are marked, in parts; and what `make test` runs besides."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOW_MAX = 10  # uses of the marker: more of them, and the quick run says little


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "quick"))


def test_the_parts_have_every_unit_test_once(quick: dict[str, Any]) -> None:
    for count in (1, 2, 5):
        jobs = quick["unit_jobs"](count)
        named = [ROOT / word for job in jobs for word in job.command if word.startswith("tests/unit/")]
        modules = [file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
        assert sorted(modules) == sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
        sizes = [job.weight for job in jobs if job.name != "unit tests of the source code"]
        assert len(sizes) == count == len(jobs) - 1
        assert max(sizes) < 2 * min(sizes), "one worker would wait for the other"


def test_modules_that_read_the_source_code_share_one_process(quick: dict[str, Any]) -> None:
    *others, readers = quick["unit_jobs"](2)
    assert {"tests/unit/test_floors.py", "tests/unit/test_language.py"} <= set(readers.command)
    assert "tests/unit/test_quick.py" in {word for job in others for word in job.command}
    assert readers.weight > max(job.weight for job in others), "it would run alone at the end"


def test_jobs_find_compiled_modules_also_without_any_next_to_the_sources(
    quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    found = quick["environment_in"]("/somewhere")
    assert not {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"} & set(found)
    assert found["TMPDIR"] == "/somewhere"
    assert found["PYTHONPYCACHEPREFIX"] == str(ROOT / ".venv" / "pycache")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    assert "PYTHONPYCACHEPREFIX" not in quick["environment_in"]("/somewhere")


def test_the_largest_job_begins_first(quick: dict[str, Any]) -> None:
    jobs = quick["jobs"]()
    assert [job.weight for job in jobs] == sorted((job.weight for job in jobs), reverse=True)
    assert {"ruff check", "ruff format", "mypy", "50 simulated seeds"} <= {job.name for job in jobs}


def test_few_tests_are_left_out() -> None:
    marked = [
        path.name
        for path in (ROOT / "tests" / "unit").rglob("test_*.py")
        for _ in re.findall(r"\bpytest\.mark\.slow\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert 0 < len(marked) <= SLOW_MAX


def test_the_whole_run_has_a_lane_for_spark_and_builds_the_documentation() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ntest:", 1)[1].split("\n\n", 1)[0]
    assert " spark='spark'" in recipe
    assert re.search(r"unit='[\w -]*\bdocs\b", recipe)
    assert "make-venv docs\n" in recipe.split("test-lanes")[0], "no lane changes the environment of another"
    for name in (
        "survival",
        "wheel",
        "chart",
        "interop-groups",
        "integrated",
        "interop-stores",
        "interop-clients",
    ):
        assert re.search(rf"['\s]{name}['\s]", recipe), name
