"""When a slave tries its master again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aerobee.broker.replication.auto_switch_follower import AutoSwitchFollower
from aerobee.broker.replication.ha_mode import MasterAddress
from aerobee.clock import ManualClock


class Unreachable:
    """A network without peers. `tries`: times of the connection attempts."""

    def __init__(self, clock: ManualClock) -> None:
        self.tries: list[float] = []
        self._clock = clock

    async def create_connection(self, factory: Any, host: str, port: int) -> Any:
        self.tries.append(round(self._clock.monotonic(), 1))
        raise ConnectionRefusedError("connection refused")


async def _nothing_to_finish() -> None:
    """The log was not cut."""


async def test_a_new_master_is_tried_soon_again_and_then_once_a_second() -> None:
    clock = ManualClock()
    network = Unreachable(clock)
    store: Any = SimpleNamespace(
        log=SimpleNamespace(end=0),
        wait_durable=lambda offset, done: done(True),
        config=SimpleNamespace(sync_from_last_file=False, async_learner=False),
    )
    epochs: Any = None
    follower = AutoSwitchFollower(
        store=store,
        clock=clock,
        network=network,
        epochs=epochs,
        broker_id=lambda: 2,
        master_epoch=lambda: 1,
        finish_cut=_nothing_to_finish,
    )
    for begin in (0.0, 4.0):  # each master again
        following = asyncio.create_task(follower.run(MasterAddress(ha="127.0.0.1:1")))
        network.tries.clear()
        for _ in range(2_000):
            for _ in range(5):
                await asyncio.sleep(0)
            clock.advance(0.002)
        assert network.tries[:6] == [round(begin + after, 1) for after in (0, 0.1, 0.3, 0.7, 1.5, 2.5)]
        following.cancel()
        await asyncio.wait((following,))
