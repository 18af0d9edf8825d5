"""The queue of due schedules against a plain dict."""

from __future__ import annotations

import random

from aerobee.broker.recurring.due_queue import DueQueue


def test_the_queue_gives_what_a_dict_would() -> None:
    rng = random.Random(5)
    queue, known, now = DueQueue(), dict[str, int](), 0
    for _ in range(5_000):
        name = f"n{rng.randrange(30)}"
        kind = rng.randrange(4)
        if kind == 0:
            queue.drop(name)
            known.pop(name, None)
        elif kind == 1:
            now += rng.randrange(4)
            taken = queue.take(now)
            due = min(((at, each) for each, at in known.items() if at <= now), default=None)
            assert taken == (None if due is None else due[1])
            known.pop(taken or "", None)
        else:
            known[name] = now + rng.randrange(20)
            queue.set(name, known[name])
        assert queue.first_ms() == min(known.values(), default=None)


def test_a_name_that_is_set_again_and_again_occupies_no_more() -> None:
    queue = DueQueue()
    for number in range(10_000):
        queue.set("one", 1_000_000 - number)
    assert len(queue._heap) <= 100
    assert queue.take(2_000_000) == "one"
    assert queue.take(2_000_000) is None
