"""A life leaves nothing behind: ten thousand of them run in one process, and so do clusters within tests of users."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from tests.simulation.consumer_world import World, run
from tests.simulation.test_ordered_consumption import OrderWorld
from tests.simulation.test_redelivery import RedeliveryWorld


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
