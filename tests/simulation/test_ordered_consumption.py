"""Order within a queue while members and the broker die, leave, come back and lose the network. See consumer_world.py.

Checked at each call of a handler: every message before this one was handled or became a dead letter, and no other handler
works on this queue, in whichever member. At the end: all messages are handled, offsets are committed.
AEROBEE_SEEDS sets how many seeds run (10,000 take a quarter of an hour of one core), AEROBEE_SEED the first one.
"""

from __future__ import annotations

import logging
import os

import pytest

from tests.simulation.consumer_world import run
from tests.simulation.order_world import OrderWorld

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))
PORTIONS = 10


def live(seed: int) -> None:
    print(f"seed {seed}")
    world = OrderWorld(seed)
    run(world, lambda: world.live(messages=12, events=4))
    if world.faults:
        raise world.faults[0]


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_order_within_a_queue_survives_everything(portion: int) -> None:
    logging.disable(logging.CRITICAL)
    try:
        for seed in range(FIRST_SEED + portion, FIRST_SEED + SEEDS, PORTIONS):
            live(seed)
    finally:
        logging.disable(logging.NOTSET)
