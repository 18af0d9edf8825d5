"""The background work on queues ends with nothing of it under way."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.clock import SystemClock
from aerobee.store.files.checkpoint import Checkpoint
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.flush import Watermark
from aerobee.store.upkeep.queue_upkeep import QueueUpkeep


@pytest.mark.parametrize("work", ["checkpoint", "log file", "index file", "index pages"])
async def test_a_cancelled_task_waits_for_its_thread(work: str) -> None:
    """A truncation of the log cancels the task and writes a checkpoint: an older one that is written behind it has bounds beyond the end."""
    has_begun, may_end = threading.Event(), threading.Event()
    done: list[str] = []

    def in_thread(*arguments: object) -> None:
        has_begun.set()
        may_end.wait(60)
        done.append(work)

    pins: list[object] = []
    file = SimpleNamespace(map_in=in_thread)
    index = SimpleNamespace(
        needs_spare=lambda: work == "index file",
        make_spare=in_thread,
        needs_map_in=lambda: work == "index pages",
        pin_newest=lambda: pins.append(file) or file,
        unpin=lambda files: [pins.remove(each) for each in files],
    )
    log = SimpleNamespace(end=0, needs_spare=lambda: work == "log file", make_spare=in_thread)
    flusher = SimpleNamespace(dirty_count=1_000, bound=lambda end: 0, index=index)
    with ThreadPoolExecutor(1) as executor:
        upkeep = QueueUpkeep(
            StoreConfig(flush_interval_consume_queue=1),
            cast(Any, log),
            cast(Any, flusher),
            Watermark(),
            cast(Any, SimpleNamespace(write=in_thread)),
            clock=SystemClock(),
            executor=executor,
            next_checkpoint=lambda bound: Checkpoint(),
            on_failed=lambda error: None,
        )
        task = asyncio.create_task(upkeep.run())
        try:
            while not has_begun.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            task.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not task.done()
            assert not done
            may_end.set()
            await asyncio.wait([task])
            assert task.cancelled()
            assert done == [work]
            assert not pins
        finally:
            may_end.set()
