"""Scenarios with delays, transactions and POP: random faults at a group with controllers, and at one whose master is given."""

from __future__ import annotations

import random

from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.features import DELAY_S_MAX, SEND_TIMEOUT_S, TASK_QUEUES, TASKS, Features
from aerobee.simulation.nemesis import Fault

FAULTS = 3
FAULT_S_MAX = 4.0
QUIET_S_MAX = 2.0
SETTLE_S = 120.0  # brokers ask about open transactions each few seconds, and what was forgotten comes back
LOOK_AGAIN_S = 15.0  # for what should not come back
WITHOUT = "clock that is set"  # then nobody can say what is early


async def features_under_faults(cluster: Cluster, rng: random.Random) -> None:
    """Delays, transactions and POP while machines, ways and disks fail. Raises Broken."""
    await cluster.create_topic(TASKS, TASK_QUEUES)
    await cluster.clock.sleep(2.0)  # so long until slaves have the topic
    features = Features(random.Random(rng.getrandbits(64)), cluster.clock, cluster.network)
    features.begin()
    try:
        for number in range(FAULTS):
            await cluster.clock.sleep(rng.uniform(0.05, QUIET_S_MAX))
            name, work = Fault(cluster, random.Random(rng.getrandbits(64)), FAULT_S_MAX).chosen()
            if name != WITHOUT:
                cluster.story.tell(f"fault {number}: {name}")
                await work()
            features.look()
        for node in cluster.nodes:
            cluster.resume(node)
        cluster.open_all()
        await cluster.clock.sleep(DELAY_S_MAX)
        await _settle(cluster, features)
    finally:
        await features.end()


async def _settle(cluster: Cluster, features: Features) -> None:
    features.send_no_more()
    await cluster.clock.sleep(SEND_TIMEOUT_S)
    await cluster.until(
        lambda: not features.missing or features.trouble is not None,
        SETTLE_S,
        "delayed or committed messages never reached the POP group",
        checker=Checker.DELIVERED,
    )
    features.look()
    await cluster.until(
        lambda: not features.unfinished or features.trouble is not None,
        SETTLE_S,
        "what a member of the POP group forgot never came back",
        checker=Checker.DELIVERED,
    )
    await cluster.clock.sleep(LOOK_AGAIN_S)
    features.look()
    if not any(task.received for task in features.tasks.values()):
        raise Broken(Checker.PROGRESS, "nothing was popped")
