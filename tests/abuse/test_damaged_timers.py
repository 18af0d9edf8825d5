"""Timer wheel and timer log damaged between two lives of a broker: every timer comes, once, and not before its time."""

from __future__ import annotations

import logging
import os
import random

import pytest

from tests.simulation.timer_world import MAX_DELAY_MS, World, drain

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "60"))
LIVES = 4


def damage(world: World, rng: random.Random) -> None:
    disk = world.disk
    logs = [f"/store/timerlog/{name}" for name in disk.list_dir("/store/timerlog")]
    paths = [path for path in ("/store/timerwheel", *logs) if disk.exists(path)]
    if not paths:
        return
    path = rng.choice(paths)
    if rng.random() < 0.25:
        disk.remove(path)
        return
    data = bytearray(disk.content(path))
    kind = rng.choice(("zeroed", "garbage", "cut", "a part zeroed"))
    if kind == "zeroed":
        data[:] = bytes(len(data))
    elif kind == "garbage":
        data[:] = rng.randbytes(len(data))
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    else:
        start = rng.randrange(len(data.rstrip(b"\0")) or 1)
        data[start : start + 52] = bytes(min(52, len(data) - start))
    disk.replace_file(path, bytes(data))


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_no_timer_is_lost_or_comes_twice(seed: int) -> None:
    logging.disable(logging.CRITICAL)
    try:
        world = World(seed)
        rng = random.Random(seed)
        for _ in range(LIVES):
            world.start(rng.choice((0, 0.1, 3, 40)))
            world.check()
            world.work()
            world.check()
            if rng.random() < 0.5:
                world.stop_cleanly()
            else:
                world.disk.crash()
            damage(world, rng)
        world.start(1)
        for _ in range(12):
            world.store.flush_now()
            world.clock.advance(MAX_DELAY_MS / 4_000)
        world.store.flush_now()
        world.clock.advance(1)
        world.check()
        world.check_all_arrived()
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_no_timer_is_lost_or_doubled_after_a_clock_was_set(seed: int) -> None:
    """The wheel's read time is ahead of a clock that was ahead and is corrected: by it, pending messages look delivered."""
    logging.disable(logging.CRITICAL)
    world = World(seed)
    rng = random.Random(seed)

    try:
        for _ in range(LIVES):
            if rng.random() < 0.5:
                world.set_clock()
            world.start(rng.choice((0, 0.1, 3)))
            for _ in range(rng.randint(1, 4)):
                for _ in range(rng.choice((0, 1, 1, 4))):
                    world.send()
                world.store.flush_now()
                world.clock.advance(rng.choice((0, 0.2, 1.5, 4, 12)))
                if rng.random() < 0.5:
                    world.set_clock()
                world.check()
            if rng.random() < 0.5:
                world.stop_cleanly()
            else:
                world.disk.crash()
            if rng.random() < 0.6:
                damage(world, rng)
        world.start(1)
        world.clock.set_by_ms = 0
        drain(world)
    finally:
        logging.disable(logging.NOTSET)
        world.let_go()
