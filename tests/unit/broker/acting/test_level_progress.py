"""A delay level moves over delivered messages only, in whatever order they leave."""

import random

import pytest

from aerobee.broker.acting.level_progress import LevelProgress


@pytest.mark.parametrize("seed", range(200))
def test_nothing_undelivered_is_ever_passed(seed: int) -> None:
    rng = random.Random(seed)
    waiting = sorted(rng.sample(range(60), rng.randint(1, 25)))
    progress = LevelProgress()
    for offset in waiting:
        progress.add(offset)
    left, before = set(waiting), 0
    while left:
        offset = rng.choice(sorted(left))
        left.discard(offset)
        now = progress.done(offset)
        # Everything below is delivered, and what stands there is not: nothing that can be passed waits.
        assert not [each for each in left if each < now]
        assert now in left or not left
        assert now >= before
        before = now
    assert before == waiting[-1] + 1
