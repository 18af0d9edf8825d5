"""A run leaves nothing behind: ten thousand of them run in one process, and so do clusters within tests of users."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from aerobee.store.message_store import MessageStore
from tests.simulation.consumer_world import World, run
from tests.simulation.order_world import OrderWorld
from tests.simulation.redelivery_world import RedeliveryWorld
from tests.simulation.timer_world import crashes


@pytest.mark.parametrize("kind", [OrderWorld, RedeliveryWorld])
def test_broker_and_members_are_freed_when_they_have_stopped(kind: Callable[[int], World]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        world = kind(1)
        run(world, partial(world.live, messages=12, events=2))
    finally:
        logging.disable(logging.NOTSET)
    disk = weakref.ref(world.disk)
    del world
    gc.collect()
    assert disk() is None


def test_stores_of_a_broker_that_delivers_later_are_freed() -> None:
    def stores() -> set[int]:
        gc.collect()
        return {id(each) for each in gc.get_objects() if isinstance(each, MessageStore)}

    logging.disable(logging.CRITICAL)
    try:
        crashes(1)
        before = stores()
        for seed in range(2, 8):
            crashes(seed)
    finally:
        logging.disable(logging.NOTSET)
    assert len(stores()) <= len(before)
