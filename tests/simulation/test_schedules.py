"""Recurring schedules: each tick once over 50 changes of master (aerobee/simulation/schedule_scenarios.py), and over
crashes of a single broker (schedule_world.py)."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from aerobee.broker.recurring import schedule_log
from aerobee.broker.recurring.schedule_log import ScheduleLog
from aerobee.broker.recurring.schedule_table import ScheduleTable
from aerobee.remoting.body.recurring_schedule import RecurringSchedule
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.fleet import run_all
from aerobee.simulation.run import run_seed
from aerobee.simulation.scenarios import Scenario
from aerobee.simulation.schedule_scenarios import SCHEDULES, TICKS, schedules_over_changes
from tests.simulation.schedule_world import World, crashes

CHANGES = 50
SEEDS = int(os.environ.get("AEROBEE_SEEDS", "60"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))
MUTATION_SEEDS = 40
ALL_KINDS = (
    *SCHEDULES,
    RecurringSchedule(name="cron", topic=TICKS, cron="*/2 * * * * *", time_zone="Europe/Berlin"),
)


@pytest.mark.slow
def test_each_tick_comes_once_over_fifty_failovers() -> None:
    async def script(cluster: Cluster, rng: random.Random) -> None:
        await schedules_over_changes(cluster, rng, CHANGES, ALL_KINDS)
        assert cluster.changes >= CHANGES

    scenario = Scenario("fifty", "", script)
    (outcome,) = run_all([FIRST_SEED or 1], lambda seed: run_seed(seed, scenario=scenario))
    assert not outcome.failure, "\n".join(outcome.story[-60:])


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules are written again often."""
    monkeypatch.setattr(schedule_log, "RECORDS_MAX", 40)
    monkeypatch.setattr(schedule_log, "REWRITES_PER_STEP", 2)
    monkeypatch.setattr(schedule_log, "REWRITE_PAUSE_S", 0)


def run_all_seeds(seeds: Iterable[int]) -> int:
    expired = 0
    for seed in seeds:
        print(f"seed {seed}")
        expired += crashes(seed).expired
    return expired


@pytest.mark.usefixtures("quiet", "soon")
def test_each_tick_comes_once_whenever_the_broker_dies() -> None:
    expired = run_all_seeds([FIRST_SEED] if FIRST_SEED else range(1, SEEDS + 1))
    assert FIRST_SEED or expired > SEEDS // 10


@pytest.mark.usefixtures("quiet")
def test_a_tick_whose_record_is_damaged_comes_once() -> None:
    """Of each schedule the record of its last tick is damaged; the message behind the record is there."""
    world = World(1)
    world.start(0)
    world.define("S0", interval_ms=3_700)
    world.define("S1", interval_ms=1_000)
    world.clock.advance(12.5)
    world.check()
    assert world.damage_newest_ticks() == {"S0", "S1"}
    world.restart_feature()
    world.clock.advance(12.5)
    world.check_in_the_end()


def believe_in_each_tick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ScheduleLog, "_is_delivered", lambda log, tick, end: True)


def believe_in_no_tick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ScheduleLog, "_is_delivered", lambda log, tick, end: False)


def write_nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ScheduleLog, "rewrite", lambda log, table: None)


def deliver_a_millisecond_early(patch: pytest.MonkeyPatch) -> None:
    next_tick = ScheduleTable.next_tick

    def early(table: ScheduleTable, name: str) -> tuple[int, int]:
        tick, due = next_tick(table, name)
        return tick, due - 1

    patch.setattr(ScheduleTable, "next_tick", early)


@pytest.mark.usefixtures("quiet", "soon")
@pytest.mark.parametrize(
    "mutation",
    [
        believe_in_each_tick,
        believe_in_no_tick,
        write_nothing_again,
        deliver_a_millisecond_early,
    ],
)
def test_the_world_notices_a_broken_promise(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        run_all_seeds(range(1, MUTATION_SEEDS))
