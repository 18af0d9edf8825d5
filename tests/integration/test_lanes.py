"""What `scripts/test-lanes` makes of tests that fail: which have a second try, and when the run is red."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test-lanes"
ONE = "FAILED tests/test_x.py::test_one[a b] - assert 1 == 2"


def run(
    directory: Path, printed: str, *, target: str = "served", alone: int = 0, **environment: str
) -> tuple[int, str]:
    """Exit code and output of two lanes: one passes, the other's target prints and fails; `alone` ends a second try."""
    (directory / "summary").write_text(printed + "\n")
    (directory / "Makefile").write_text(
        f"{target}:\n\t@cat summary\n\t@false\nfine:\n\t@echo fine\nlater:\n\t@echo later ran\n"
    )
    python = directory / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "alone: $*"\nexit {alone}\n')
    python.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "a=fine", f"b={target} later"],
        cwd=directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_a_test_that_passes_alone_is_named_and_does_not_fail_the_run(tmp_path: Path) -> None:
    code, printed = run(tmp_path, f"some output\nERROR    a log line\n{ONE}")
    assert code == 0, printed
    assert "alone: -m pytest -q tests/test_x.py::test_one[a b]" in printed
    assert "UNSTEADY    : tests/test_x.py::test_one[a b] failed with other lanes running" in printed
    assert "later ran" in printed


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    code, printed = run(tmp_path, ONE, alone=1)
    assert code == 1, printed
    assert "b           : FAILED at `make served`" in printed


@pytest.mark.parametrize(
    ("printed", "target"),
    [
        (ONE, "simulated"),
        ("make: nothing that pytest says", "served"),
        ("ERROR tests/test_y.py - ImportError: no module", "served"),
        (f"{ONE}\nERROR tests/test_y.py", "served"),
        ("\n".join(f"FAILED tests/test_x.py::test_{number}" for number in range(4)), "served"),
    ],
    ids=["simulated time", "no test named", "not collected", "a test and a file", "four tests"],
)
def test_what_has_no_second_try(tmp_path: Path, printed: str, target: str) -> None:
    code, output = run(tmp_path, printed, target=target)
    assert code == 1, output
    assert "alone" not in output


def test_nothing_is_run_twice_when_told_so(tmp_path: Path) -> None:
    code, output = run(tmp_path, ONE, AGAIN="0")
    assert code == 1, output
    assert "alone" not in output


def test_a_spark_test_runs_alone_in_the_environment_of_spark(tmp_path: Path) -> None:
    spark = tmp_path / ".venv-spark" / "bin" / "python"
    spark.parent.mkdir(parents=True)
    spark.write_text('#!/bin/sh\necho "with Spark: $*"\n')
    spark.chmod(0o755)
    code, printed = run(tmp_path, "FAILED tests/spark/test_x.py::test_one - assert 1 == 2", alone=1)
    assert code == 0, printed
    assert "with Spark: -m pytest -q tests/spark/test_x.py::test_one" in printed
