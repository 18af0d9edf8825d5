"""Transactions under crashes and power losses at any point (transaction_world.py says what is checked).

AEROBEE_SEEDS sets how many seeds run, AEROBEE_SEED picks one. All 10,000:

    AEROBEE_SEEDS=10000 pytest tests/simulation/test_transactions.py
"""

from __future__ import annotations

import os
from collections import Counter

from tests.simulation.transaction_world import World

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))


def seeds() -> list[int]:
    return [FIRST_SEED] if FIRST_SEED else list(range(1, SEEDS + 1))


def test_decisions_are_carried_out_once_whatever_crashes() -> None:
    counts: Counter[str] = Counter()
    for seed in seeds():
        try:
            world = World(seed)
            world.run()
        except BaseException:
            print(f"seed {seed}: AEROBEE_SEED={seed} runs it alone")
            raise
        counts.update(world.counts)
        counts["delivered"] += sum(world.delivered().values())
        counts["checks"] += world.sent.total()
        counts["refused"] += world.part.ends.refused_count
    print(dict(counts))
    if not FIRST_SEED and SEEDS >= 100:
        # The seeds meet what they are for.
        for what in ("stop", "kill", "power loss", "delivered", "checks"):
            assert counts[what] > SEEDS // 4, f"{what}: {counts[what]} in {SEEDS} seeds"


def test_check_of_a_new_transaction_does_not_wait_for_that_of_an_older_one() -> None:
    world = World(1)
    while len(world.wishes) < 1:
        world.prepare()
    world.advance(25)
    assert world.sent.total() == 1  # not answered: it is checked again after 60 s
    first = set(world.wishes)
    while not world.wishes.keys() - first:
        world.prepare()
    world.advance(25)
    assert set(world.sent) == set(world.wishes)
