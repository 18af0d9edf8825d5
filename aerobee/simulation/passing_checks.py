"""Invariants of a recreated topic at the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.passing import PASSING, Passing

SETTLE_S = 60.0
MORE_S = 1.0  # for what should not come


async def settle(cluster: Cluster, passing: Passing) -> None:
    """After its deletion no broker has it; recreated, it is empty, and its group receives every message. Raises Broken."""
    await passing.end_rounds()
    await _in_time(cluster, passing.delete_last(), "a topic could not be deleted")
    await cluster.until(
        lambda: all(
            node.process is not None
            and PASSING not in node.process.topics.topics
            and not any(topic == PASSING for topic, _ in node.process.store.queues)
            for node in cluster.brokers
        ),
        SETTLE_S,
        "a topic that was deleted at the master stays at a slave",
    )
    await _in_time(cluster, passing.make_last(), "no send to a recreated topic is acknowledged")
    begins = {queue_id: offset for queue_id, offset in passing.first_offsets.items() if offset}
    if begins:
        raise Broken(Checker.EXACTLY_ONCE, f"{PASSING}: queues of a new topic begin at {begins}")
    is_over = False
    reading = asyncio.create_task(passing.read_last(lambda: is_over))
    try:
        await cluster.until(
            lambda: not passing.missing or passing.broken is not None,
            SETTLE_S,
            "messages of a recreated topic never reached its group",
            checker=Checker.DELIVERED,
        )
        await cluster.clock.sleep(MORE_S)
    finally:
        is_over = True
        await reading
    passing.look()


async def _in_time(cluster: Cluster, work: Coroutine[Any, Any, None], otherwise: str) -> None:
    task = asyncio.create_task(work)
    await cluster.until(task.done, SETTLE_S, otherwise)
    task.result()
