"""Invariants of a recreated topic at the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.passing import PASSING, PASSING_LMQ, Passing
from aerobee.simulation.stream_checks import read_queue

SETTLE_S = 60.0
MORE_S = 1.0  # time to wait for messages that must not come


async def settle(cluster: Cluster, passing: Passing) -> None:
    """After its deletion no broker has the topic; recreated, it is empty, and its group receives every
    message. Raises Broken.
    """
    await passing.end_rounds()
    await _in_time(cluster, passing.delete_last(), "a topic could not be deleted")
    await cluster.until(
        lambda: all(
            node.process is not None
            and PASSING not in node.process.topics.topics
            and not any(topic in (PASSING, PASSING_LMQ) for topic, _ in node.process.store.queues)
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
    await cluster.until(
        lambda: cluster.master() is not None, SETTLE_S, "no master after a topic was recreated"
    )
    cluster.clock.uncharged(lambda: _check_lmq(cluster, passing))


def _check_lmq(cluster: Cluster, passing: Passing) -> None:
    """The LMQ contains each message that was sent to it since the topic was created once, and nothing else."""
    master = cluster.master()
    assert master is not None
    found = [message.body for message in read_queue(master, PASSING_LMQ, 0).values()]
    odd = set(found) - passing.in_lmq | (passing.acknowledged & passing.in_lmq) - set(found)
    if odd or len(found) != len(set(found)):
        raise Broken(
            Checker.ACKNOWLEDGED,
            f"{PASSING_LMQ} has {len(found)} messages, {len(passing.in_lmq)} were sent to it; the difference begins with {sorted(odd)[:3]}",
        )


async def _in_time(cluster: Cluster, work: Coroutine[Any, Any, None], otherwise: str) -> None:
    task = asyncio.create_task(work)
    await cluster.until(task.done, SETTLE_S, otherwise)
    task.result()
