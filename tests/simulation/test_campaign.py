"""A campaign over several sessions: what its file has is not run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.errors import UsageError
from aerobee.simulation.campaign import CHUNK_RUNS, Campaign, Chunk
from aerobee.simulation.outcome import Outcome


def test_what_the_file_has_is_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.jsonl")
    seeds = range(64, 64 + 2 * CHUNK_RUNS + 32)
    campaign = Campaign(path)
    first, second, last = campaign.left(seeds, 0.02)
    assert [(each.first, each.runs) for each in (first, second, last)] == [
        (64, CHUNK_RUNS),
        (64 + CHUNK_RUNS, CHUNK_RUNS),
        (64 + 2 * CHUNK_RUNS, 32),
    ]
    campaign.add(second)
    assert list(Campaign(path).left(seeds, 0.02)) == [first, last]
    assert list(Campaign(path).left(seeds, 1.0)) != [first, last], "runs of another length are other runs"


def test_a_chunk_counts_its_runs(tmp_path: Path) -> None:
    chunk = Chunk(0, 2, 0.02)
    chunk.add(Outcome(0, sent=5, acknowledged=4, masters=3, returns=1, fault_count=2))
    chunk.add(Outcome(1, failure="order: no", masters=1))
    assert (chunk.sent, chunk.acknowledged, chunk.changes, chunk.three_changes, chunk.returned) == (
        5,
        4,
        4,
        1,
        1,
    )
    assert chunk.broken == {"1": "order: no"}
    campaign = Campaign(str(tmp_path / "runs.jsonl"))
    campaign.add(chunk)
    assert "2 runs in 1 chunk, 1 broke a promise" in campaign.summary()


def test_a_line_that_is_no_chunk_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"first": 0}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"line 1 is no chunk"):
        Campaign(str(path))


def test_the_command_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    command = [
        sys.executable,
        "-m",
        "aerobee.ops",
        "sim",
        "--runs",
        "2",
        "--minutes",
        "0.02",
        "--record",
        str(path),
    ]
    for _ in range(2):
        told = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["runs"] == 2
    assert "2 runs in 1 chunk, 0 broke a promise" in told.stderr + told.stdout
