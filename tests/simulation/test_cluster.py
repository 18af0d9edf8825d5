"""Whole clusters under faults: nothing acknowledged is lost, every consumer gets all of it, and each mutation fails its check.

AEROBEE_SEEDS sets the number of random runs. Runs are forked, two at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from aerobee.simulation import run
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.coverage import COLUMNS, FEATURES, MUST_MEET, empty_pairs, summed
from aerobee.simulation.drawn_settings import KINDS, ROUND_STARTS, SHARED_STARTS, drawn_settings
from aerobee.simulation.fleet import run_all, run_groups
from aerobee.simulation.outcome import Outcome
from aerobee.simulation.run import groups_of, run_group, run_seed, start_of
from aerobee.simulation.scenarios import SCENARIOS, Scenario, Script
from aerobee.simulation.traffic import WAYS, Way
from tests.simulation.cluster_mutations import HISTORIES, MUTATIONS, SEEDS_TO_NOTICE, noticed

SEEDS = min(int(os.environ.get("AEROBEE_SEEDS", "0")), 100_000) or 2_000
LONG_SEEDS = 12
MANY = 2_000  # runs in which each feature meets each fault that matters
SCENARIO_SEEDS = 1
MINUTES, LONG_MINUTES = 0.02, 0.2
JOBS = 2


@pytest.fixture(autouse=True)
def _numbers_of_their_own() -> Iterator[None]:
    """A run seeds the random module."""
    state = random.getstate()
    yield
    random.setstate(state)


def _told(outcome: Outcome) -> str:
    return "\n".join([f"seed {outcome.seed}: {outcome.failure}", *outcome.story])


@pytest.mark.parametrize(("count", "minutes"), [(SEEDS, MINUTES), (LONG_SEEDS, LONG_MINUTES)])
def test_clusters_keep_their_promises(count: int, minutes: float) -> None:
    """Many short runs, with a fault or two each, and some with faults upon faults."""
    seen: set[int] = set()
    acknowledged = often = returned = 0
    outcomes: list[Outcome] = []
    for outcome in run_groups(
        groups_of(range(count)), lambda group: run_group(group, minutes=minutes), jobs=JOBS
    ):
        assert not outcome.failure, _told(outcome)
        acknowledged += outcome.acknowledged
        often += outcome.masters >= 3
        returned += outcome.returns > 0
        seen.add(outcome.seed)
        outcome.story.clear()
        outcomes.append(outcome)
    assert seen == set(range(count))
    assert acknowledged > 10 * count
    if count >= MANY:  # few runs say little about shares
        assert often > count / 2, "three changes of master or more"
        assert returned > count / 4, "back to an earlier master"
        assert not empty_pairs(summed(outcomes))


def test_a_pair_that_never_met_is_told() -> None:
    met = {feature: dict.fromkeys((faults[0] for faults in COLUMNS.values()), 1) for feature in FEATURES}
    assert empty_pairs(summed([Outcome(0, met=met)])) == []
    del met[FEATURES[0]][COLUMNS[MUST_MEET[0]][0]]
    assert empty_pairs(summed([Outcome(0, met=met)])) == [(FEATURES[0], MUST_MEET[0])]


def test_a_seed_is_the_same_run_alone_and_among_those_that_share_its_start() -> None:
    seeds = [200, 202, 204]
    together = {
        outcome.seed: outcome
        for outcome in run_groups([seeds], lambda group: run_group(group, minutes=MINUTES), jobs=1)
    }
    (alone,) = run_all([204], lambda seed: run_seed(seed, minutes=MINUTES))
    assert alone.digest == together[204].digest
    assert alone.story == together[204].story
    assert len({outcome.digest for outcome in together.values()}) == len(seeds)


def test_seeds_share_a_start_with_their_neighbours() -> None:
    groups = list(groups_of(range(60, 70)))
    assert sorted(seed for group in groups for seed in group) == list(range(60, 70))
    assert all(len({start_of(seed) for seed in group}) == 1 for group in groups)
    assert len({start_of(group[0]) for group in groups}) == len(groups) == 4


def test_each_round_of_starts_has_each_kind_and_each_way() -> None:
    starts = sorted({start_of(seed) for seed in range(ROUND_STARTS * SHARED_STARTS)})
    for begin in range(0, len(starts), ROUND_STARTS):
        some = [drawn_settings(start).streams for start in starts[begin : begin + ROUND_STARTS]]
        kinds = [traffic.kind for streams in some for traffic in streams]
        assert sorted(kinds, key=KINDS.index) == list(KINDS)
        assert {traffic.way for streams in some for traffic in streams} == set(Way)
        assert all(traffic.way in WAYS[traffic.kind] for streams in some for traffic in streams)
    assert {drawn_settings(start).sync_disk for start in starts} == {False, True}


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
    assert found is not None, f"{SEEDS_TO_NOTICE} runs, and none of its checkers noticed"


def test_the_histories_are_among_the_mutations() -> None:
    assert len({MUTATIONS[name].scenario for name in HISTORIES}) == 6


@pytest.mark.parametrize(("seed", "minutes"), [("4", "0.1"), ("9", "0.02")])  # 9: with a loss of power
def test_the_same_seed_is_the_same_run(seed: str, minutes: str) -> None:
    """In separate processes, whose sets of texts have another order each."""
    command = [
        sys.executable,
        "-m",
        "aerobee.ops",
        "sim",
        "--seed",
        seed,
        "--minutes",
        minutes,
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


async def _turns(cluster: Cluster, rng: random.Random) -> None:
    cluster.story.tell("round and round")
    loop = asyncio.get_running_loop()

    def again() -> None:
        loop.call_soon(again)

    again()
    await asyncio.Event().wait()


async def _does_not_return(cluster: Cluster, rng: random.Random) -> None:
    cluster.story.tell("in here")
    while True:
        with contextlib.suppress(Exception):  # as whoever catches everything
            rng.random()


@pytest.mark.parametrize(
    ("script", "said"), [(_turns, "event loop iterations"), (_does_not_return, "_does_not_return")]
)
def test_a_run_whose_time_does_not_pass_is_a_failure(
    script: Script, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LOOK_CPU_S", 0.3)
    outcome = run_seed(1, scenario=Scenario("still", "", script))
    assert outcome.checker == "progress"
    assert "stood still" in outcome.failure
    assert said in outcome.failure
    assert len(outcome.story) > 5


def test_seeds_without_an_outcome_have_failed() -> None:
    def die(group: Sequence[int]) -> Iterator[Outcome]:
        yield Outcome(group[0])
        os._exit(7)

    outcomes = {outcome.seed: outcome for outcome in run_groups([[3, 5, 7]], die)}
    assert not outcomes[3].failure
    assert "status 7" in outcomes[5].failure
    assert "status 7" in outcomes[7].failure


def test_a_run_whose_process_dies_is_a_failure() -> None:
    def die(seed: int) -> Outcome:
        os._exit(7)

    (outcome,) = run_all([3], die)
    assert outcome.seed == 3
    assert "status 7" in outcome.failure
