"""Whole clusters under faults: nothing acknowledged is lost, whoever reads gets all of it, and the checkers bite."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aerobee.simulation.run import run_seed
from tests.simulation.cluster_mutations import MUTATIONS

SEEDS = min(int(os.environ.get("AEROBEE_SEEDS", "0")), 2_000) or 6
SEEDS_TO_NOTICE = 25
MINUTES = 0.7


@pytest.fixture(autouse=True)
def _numbers_of_their_own() -> Iterator[None]:
    """A run seeds the random module."""
    state = random.getstate()
    yield
    random.setstate(state)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_cluster_keeps_its_promises(seed: int) -> None:
    outcome = run_seed(seed, minutes=MINUTES)
    assert not outcome.failure, "\n".join([f"seed {seed}: {outcome.failure}", *outcome.story])
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("name", MUTATIONS)
def test_lives_notice(name: str) -> None:
    for seed in range(SEEDS_TO_NOTICE):
        with MUTATIONS[name]():
            if run_seed(seed, minutes=MINUTES).failure:
                return
    pytest.fail(f"{SEEDS_TO_NOTICE} lives without a promise broken")


def test_the_same_seed_is_the_same_run() -> None:
    """In processes of their own, whose sets of texts have another order each."""
    command = [
        sys.executable,
        "-m",
        "aerobee.ops",
        "sim",
        "--seed",
        "4",
        "--minutes",
        "0.1",
        "--json",
        "--story",
    ]
    runs = [
        json.loads(
            subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
            ).stdout
        )
        for hash_seed in ("1", "2")
    ]
    assert runs[0]["story"] == runs[1]["story"]
    assert runs[0]["digest"] == runs[1]["digest"]
    assert runs[0]["sent"] > 10
