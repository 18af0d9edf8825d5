"""POP at a broker that dies at any point: nothing lost, nothing at two consumers, order kept (pop_world.py).

AEROBEE_SEEDS sets the number of runs, AEROBEE_SEED picks one. Ten thousand long ones take about ten minutes:

    python -m tests.simulation.pop_world 10000
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from aerobee.broker.pop import pop_feature, reviver
from aerobee.broker.pop.check_point import CheckPoint
from aerobee.broker.pop.engine import PopEngine, PopWant, Taken
from aerobee.broker.pop.in_flight import InFlightTable
from aerobee.broker.pop.revive_log import ReviveLog
from tests.simulation.pop_world import World, crashes

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))
LIVES = 2
MUTATION_SEEDS = 100
CLOCK_SEEDS = 100


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def live(seeds: Iterable[int], lives: int = LIVES) -> None:
    for seed in seeds:
        print(f"seed {seed}")
        crashes(seed, lives)


def test_pops_survive_a_broker_that_dies_at_any_point() -> None:
    if FIRST_SEED:
        live([FIRST_SEED], lives=4)
    else:
        live(range(1, SEEDS + 1))


def test_pops_survive_a_wall_clock_that_is_set_ahead_and_back() -> None:
    for seed in range(1, CLOCK_SEEDS + 1):
        print(f"seed {seed}")
        assert crashes(seed, LIVES, sets_clock=True).known


def test_a_check_point_that_a_power_loss_tore_moves_no_offset() -> None:
    """A run in which a power loss leaves a check point with a whole body and half of its properties."""
    live([1137], lives=4)


def test_copies_of_an_earlier_run_are_found_over_the_end_of_a_queue_file() -> None:
    """A run with more copies in the retry topic than one file of its queue holds, and then a power loss."""
    live([970], lives=2)


# --- the checks detect mutations: each of these faults is found by some seed


def write_acknowledgements_first(patch: pytest.MonkeyPatch) -> None:
    append = ReviveLog.append

    def wrong(log: ReviveLog, now_ms: int, points: Sequence[Any] = (), acks: Sequence[Any] = ()) -> int:
        if acks:
            append(log, now_ms, (), acks)
        return append(log, now_ms, points, ())

    patch.setattr(ReviveLog, "append", wrong)


def forget_what_was_popped_since_the_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pop_feature, "recover_pops", lambda store, **parts: 0)


def forget_marks_of_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reviver.Reviver, "_copies_in", lambda self, topic: set())


def save_offsets_before_the_log_is_safe(patch: pytest.MonkeyPatch) -> None:
    def save(world: World) -> None:
        write = world.offsets.prepare_save()
        if write is not None:
            write()

    patch.setattr(World, "save_offsets", save)


def hand_everything_out_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckPoint, "unacked", property(lambda point: point.offsets))


def hand_out_before_the_check_point(patch: pytest.MonkeyPatch) -> None:
    def wrong(engine: PopEngine, want: PopWant, taken: Taken, moves: Any) -> None:
        return None

    patch.setattr(PopEngine, "_write_points", wrong)


def let_ordered_queues_overtake(patch: pytest.MonkeyPatch) -> None:
    hold = PopEngine._hold_block

    def wrong(engine: PopEngine, want: PopWant, topic: str, share: Any, taken: Taken) -> None:
        hold(engine, want, topic, share, taken)
        engine._offsets.commit(want.group, topic, share.queue_id, share.offsets[-1] + 1)

    patch.setattr(PopEngine, "_hold_block", wrong)


def leave_doubles_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InFlightTable, "settling_doubles", lambda table, written_at: iter(()))


@pytest.mark.parametrize(
    ("mutation", "first"),  # the search begins not far before the seed that finds it, to be quick
    [
        (write_acknowledgements_first, 40),
        (forget_what_was_popped_since_the_file, 1),
        (forget_marks_of_copies, 1),
        (save_offsets_before_the_log_is_safe, 10),
        (hand_everything_out_again, 1),
        (hand_out_before_the_check_point, 1),
        (let_ordered_queues_overtake, 1),
        (leave_doubles_alone, 225),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulation_finds_this_fault(
    mutation: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        live(range(first, first + MUTATION_SEEDS), lives=3)
