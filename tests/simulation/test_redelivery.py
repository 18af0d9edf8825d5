"""Redelivery while members and the broker die, leave, come back and lose the network. See consumer_world.py.

Checked at each commit: no offset passes a message that was neither handled nor taken back by the broker. At each call of a
handler: the n-th try follows a failed one before it, and there are no more than allowed. At the end: each message was
handled, or lies with the dead letters after as many failures as are allowed; offsets are committed.
AEROBEE_SEEDS sets how many seeds run (10,000 take a quarter of an hour of one core), AEROBEE_SEED the first one.
"""

from __future__ import annotations

import logging
import os

import pytest

from tests.simulation.consumer_world import Fault, run
from tests.simulation.redelivery_world import TRIES_MAX, RedeliveryWorld

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))
PORTIONS = 10


def live(seed: int) -> None:
    print(f"seed {seed}")
    world = RedeliveryWorld(seed)
    run(world, lambda: world.live(messages=14, events=4))
    for body in world.dead:
        if TRIES_MAX not in world.failed[body]:
            raise Fault(f"{body!r} is a dead letter, but failed only at {world.failed[body]}")


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_no_message_is_lost_and_tries_are_counted(portion: int) -> None:
    logging.disable(logging.CRITICAL)
    try:
        for seed in range(FIRST_SEED + portion, FIRST_SEED + SEEDS, PORTIONS):
            live(seed)
    finally:
        logging.disable(logging.NOTSET)
