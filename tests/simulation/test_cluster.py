"""Whole clusters under faults: nothing acknowledged is lost, whoever reads gets all of it, and the checkers bite.

AEROBEE_SEEDS sets how many random lives run. Runs are forked, two at a time.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aerobee.simulation.fleet import run_all
from aerobee.simulation.run import Outcome, run_seed
from aerobee.simulation.scenarios import SCENARIOS
from tests.simulation.cluster_mutations import HISTORIES, MUTATIONS, noticed

SEEDS = min(int(os.environ.get("AEROBEE_SEEDS", "0")), 100_000) or 12
SCENARIO_SEEDS = 1
SEEDS_TO_NOTICE = 6
MINUTES = 0.2
JOBS = 2


@pytest.fixture(autouse=True)
def _numbers_of_their_own() -> Iterator[None]:
    """A run seeds the random module."""
    state = random.getstate()
    yield
    random.setstate(state)


def _told(outcome: Outcome) -> str:
    return "\n".join([f"seed {outcome.seed}: {outcome.failure}", *outcome.story])


def test_clusters_keep_their_promises() -> None:
    acknowledged = 0
    for outcome in run_all(range(SEEDS), lambda seed: run_seed(seed, minutes=MINUTES), jobs=JOBS):
        assert not outcome.failure, _told(outcome)
        acknowledged += outcome.acknowledged
    assert acknowledged > 10 * SEEDS


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_keeps_the_promises(name: str) -> None:
    for outcome in run_all(
        range(SCENARIO_SEEDS), lambda seed: run_seed(seed, scenario=SCENARIOS[name]), jobs=JOBS
    ):
        assert not outcome.failure, _told(outcome)
        assert outcome.acknowledged > 0


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_noticed_by_its_checker(name: str) -> None:
    found = noticed(MUTATIONS[name], range(SEEDS_TO_NOTICE))
    assert found is not None, f"{SEEDS_TO_NOTICE} lives without a promise broken"
    _, checker, failure = found
    assert checker in [each.value for each in MUTATIONS[name].checkers], failure


def test_the_histories_are_among_the_mutations() -> None:
    assert len({MUTATIONS[name].scenario for name in HISTORIES}) == 6


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


def test_the_command_names_the_scenarios() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "aerobee.ops", "sim", "--list"], capture_output=True, text=True, check=True
    ).stdout
    assert all(name in listed for name in SCENARIOS)


def test_a_run_whose_process_dies_is_a_failure() -> None:
    def die(seed: int) -> Outcome:
        os._exit(7)

    (outcome,) = run_all([3], die)
    assert outcome.seed == 3
    assert "status 7" in outcome.failure
