"""Scenarios with a POP group: what was popped, and acknowledged, when its master dies."""

from __future__ import annotations

import random

from aerobee.simulation.clients import PRODUCERS
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.features import DELAY_S_MAX, MEMBERS
from aerobee.simulation.node import Node
from aerobee.simulation.scenario_steps import (
    FINE_S,
    LONG_S,
    full_set,
    kill,
    leading_controller,
    other_brokers,
    start,
)
from aerobee.simulation.task import INVISIBLE_S

SENDERS = (*(f"producer-{number}" for number in range(PRODUCERS)), "delays", "transactions")
SYNC_S = 1.2  # of a slow disk; an election takes less


async def popped_and_cut(cluster: Cluster, rng: random.Random) -> None:
    """A master that was a slave before pops messages while its log reaches no replica. The next master gets its tables before
    any member pops there.
    """
    leader = leading_controller(cluster)
    first = await full_set(cluster)
    if leader is not None:
        await cluster.clock.sleep(rng.uniform(1.0, 2.0))
        await cluster.elect(leader, rng.choice(other_brokers(cluster, first)))
    await cluster.clock.sleep(rng.uniform(1.0, 2.0))
    master = await full_set(cluster)
    members = [f"popper-{number}" for number in range(MEMBERS)]
    for member in members:  # messages wait in the queues, at all replicas
        cluster.network.cut(member, master.host.name)
    await cluster.clock.sleep(rng.uniform(4.0, 8.0))
    for node in other_brokers(cluster, master):
        cluster.cut(master, node)
        for member in members:
            cluster.network.cut(member, node.host.name)
    for member in members:  # they never get the answer to what they ask now
        cluster.network.cut(master.host.name, member)
        cluster.network.uncut(member, master.host.name)
    await cluster.clock.sleep(rng.uniform(0.3, 0.8))
    cluster.pause(master)
    await cluster.until(
        lambda: any(node.process.role.takes_writes for node in other_brokers(cluster, master)),
        LONG_S,
        "no other broker became master",
    )
    for node in other_brokers(cluster, master):
        cluster.network.uncut(master.host.name, node.host.name)
    cluster.resume(master)
    await full_set(cluster)
    await cluster.clock.sleep(rng.uniform(2.0, 3.0))
    cluster.open_all()


async def _quiet_tasks(cluster: Cluster, rng: random.Random) -> tuple[Node, list[str]]:
    """The master, and the members of the POP group, which are away: messages wait for them, no client sends, and none is due later."""
    await full_set(cluster)
    members = [f"popper-{number}" for number in range(MEMBERS)]
    for member in members:
        cluster.network.isolate(member)
    await cluster.clock.sleep(rng.uniform(1.0, 2.0))
    for sender in SENDERS:
        cluster.network.isolate(sender)
    await cluster.clock.sleep(DELAY_S_MAX + 1.0)
    return await full_set(cluster), members


async def down_after_pops(cluster: Cluster, rng: random.Random) -> None:
    """All brokers die just after acknowledgements. A slave leads next, and nothing is written there before it reads what was popped.
    The group's members are away until what was popped is visible again.
    """
    master, members = await _quiet_tasks(cluster, rng)
    for member in members:
        cluster.network.rejoin(member)
    await cluster.clock.sleep(rng.uniform(0.3, 1.0))
    for member in members:
        cluster.network.isolate(member)
    await kill(cluster, *cluster.brokers)
    await start(cluster, *other_brokers(cluster, master), master)
    await full_set(cluster)
    await cluster.clock.sleep(INVISIBLE_S + 1.0)
    cluster.open_all()
    await cluster.clock.sleep(1.0)


async def synced_late(cluster: Cluster, rng: random.Random) -> None:
    """A slave leads whose disk still syncs the check points that it copied last. Members pop there before these messages are visible
    again, and come back when they are.
    """
    master, members = await _quiet_tasks(cluster, rng)
    others = other_brokers(cluster, master)
    for node in others:
        node.host.executor.delay_s = SYNC_S
    for member in members:
        cluster.network.rejoin(member)
    await cluster.clock.sleep(rng.uniform(0.05, 0.2))
    for member in members:  # they never get an answer
        cluster.network.isolate(member)
    killed_at = cluster.clock.monotonic()
    await kill(cluster, master)
    await cluster.until(
        lambda: any(node.process.role.takes_writes for node in others),
        LONG_S,
        "no other broker became master",
        step_s=FINE_S,
    )
    for node in others:
        node.host.executor.delay_s = 0.0
    for member in members:
        cluster.network.rejoin(member)
    await cluster.clock.sleep(max(0.0, killed_at + INVISIBLE_S - 0.3 - cluster.clock.monotonic()))
    for member in members:
        cluster.network.isolate(member)
    await cluster.clock.sleep(INVISIBLE_S + 1.0)
    cluster.open_all()
    await cluster.clock.sleep(1.0)
