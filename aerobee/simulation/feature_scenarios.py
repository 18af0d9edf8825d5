"""Scenarios with delays, transactions and POP: random faults at a group with controllers, and at a group with
a configured master.
"""

from __future__ import annotations

import random

from aerobee.simulation.cluster import Cluster
from aerobee.simulation.nemesis import Fault

FAULTS = 3
FAULT_S_MAX = 4.0
QUIET_S_MAX = 2.0
POPPED_S = 60.0  # longest wait for the first pop after the faults
WITHOUT = "clock that is set"  # with a wrong clock early deliveries cannot be detected


async def features_under_faults(cluster: Cluster, rng: random.Random) -> None:
    """Delays, transactions and POP while hosts, links and disks fail. Raises Broken."""
    features = cluster.features
    assert features is not None
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
    await cluster.until(
        lambda: any(task.received for task in features.tasks.values()),
        POPPED_S,
        "nothing was popped",
    )
