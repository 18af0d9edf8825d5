"""Schedules of faults that hit one window each: six in which RocketMQ or DLedger lost messages or service,
and some Aerobee-specific ones.

A scenario is a script for a running cluster with clients. The seed shifts its times, so a range of seeds
sweeps the window. At its end the runner repairs the remaining faults and applies the checks of every run
(checks.py).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.change_of_master import ChangeOfMaster
from aerobee.simulation.churn import Churn
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.names import BROKER_PORT, NAME, PORT_STEP
from aerobee.simulation.nemesis import Fault
from aerobee.simulation.node import Node, Settings
from aerobee.simulation.pop_scenarios import down_after_pops, popped_and_cut, synced_late
from aerobee.simulation.scenario_steps import (
    FINE_S,
    LONG_S,
    find_master,
    full_set,
    kill,
    leading_controller,
    other_brokers,
    set_of,
    start,
)
from aerobee.simulation.schedule_scenarios import schedules_over_changes
from aerobee.simulation.traffic import Kind, Traffic, Way

Script = Callable[[Cluster, random.Random], Coroutine[Any, Any, None]]
TURNS = 4  # changes of master
# Of features_under_faults().
FAULTS = 3
FAULT_S_MAX = 4.0
QUIET_S_MAX = 2.0
POPPED_S = 60.0  # longest wait for the first pop after the faults
WITHOUT = "clock that is set"  # with a wrong clock early deliveries cannot be detected


async def features_under_faults(cluster: Cluster, rng: random.Random) -> None:
    """Delays, transactions and POP while hosts, links and disks fail, with controllers or with a configured master. Raises Broken."""
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


PLAIN = Settings()


@dataclass(frozen=True, slots=True)
class Scenario:
    """`history`: one sentence about the original incident."""

    name: str
    history: str
    script: Script
    settings: Settings = PLAIN


async def _one_leaves(cluster: Cluster, rng: random.Random, master: Node) -> Node:
    """A replica dies and leaves the in-sync set."""
    node = rng.choice(other_brokers(cluster, master))
    await kill(cluster, node)
    await cluster.until(
        lambda: (found := set_of(master)) is not None and len(found.counted) == 2,
        LONG_S,
        "the set never shrank",
    )
    return node


async def _set_grows_early(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    back = await _one_leaves(cluster, rng, master)
    await start(cluster, back)

    def is_in() -> bool:
        leader = leading_controller(cluster)
        return leader is not None and len(leader.process.state.groups[NAME].in_sync) == len(cluster.brokers)

    await cluster.until(is_in, LONG_S, "the replica never came back into the set", step_s=FINE_S)
    for controller in cluster.controllers:  # the controllers' reply is in flight
        cluster.cut(controller, master)
    cluster.cut(master, back)
    cluster.story.tell(f"{back.host.name} is in the set again; {master.host.name} does not hear of it")
    await cluster.clock.sleep(rng.uniform(0.3, 1.5))
    await kill(cluster, *other_brokers(cluster, back))
    cluster.open_all()
    await cluster.clock.sleep(rng.uniform(12.0, 15.0))
    await start(cluster, *cluster.brokers)


async def _batches_before_their_topic(cluster: Cluster, rng: random.Random) -> None:
    """A slave with an empty disk copies a log with batches before it has the settings of their topic."""
    await full_set(cluster)
    for _ in range(2):
        await Churn(cluster, random.Random(rng.getrandbits(64))).new_replica()


async def _masters_by_turns(cluster: Cluster, rng: random.Random) -> None:
    """State files next to the log after the masters A, B, A, B."""
    await full_set(cluster)
    for _ in range(TURNS):
        _, change = ChangeOfMaster(cluster, random.Random(rng.getrandbits(64))).chosen()
        await change()
        await cluster.clock.sleep(rng.uniform(0.5, 2.0))


async def _cut_and_again(cluster: Cluster, rng: random.Random) -> None:
    """A master pops and decides alone, and hangs until another one leads. It leads again as soon as its log was cut, before it
    copied the tables of the other one.
    """
    master = await full_set(cluster)
    for node in other_brokers(cluster, master):
        cluster.cut(master, node)
    await cluster.clock.sleep(rng.uniform(1.0, 4.0))
    cluster.pause(master)

    def leading() -> list[Node]:
        return [node for node in other_brokers(cluster, master) if node.process.role.takes_writes]

    await cluster.until(lambda: bool(leading()), LONG_S, "no other broker became master")
    cluster.open_all()
    cluster.network.hang_at(master.host.name, BROKER_PORT + PORT_STEP * leading()[0].index)
    cluster.resume(master)
    await full_set(cluster)
    leader = leading_controller(cluster)
    if leader is not None:
        await cluster.elect(leader, master)
    await cluster.clock.sleep(rng.uniform(0.5, 1.0))
    cluster.network.hang_at("", 0)


async def _shared_queue_offsets(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    for node in other_brokers(cluster, master):
        cluster.cut(master, node)
    await cluster.clock.sleep(rng.uniform(0.5, 1.5))
    controller = leading_controller(cluster)
    await kill(cluster, *cluster.brokers, *([controller] if controller is not None else []))
    cluster.open_all()
    await start(cluster, master, *([controller] if controller is not None else []))
    await cluster.until(lambda: cluster.master() is master, LONG_S, "the old master never leads again")
    await start(cluster, *cluster.brokers)
    await cluster.clock.sleep(rng.uniform(2.0, 4.0))


async def _two_masters(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    controller = leading_controller(cluster)
    inside = [master, *(node for node in cluster.controllers if node is controller)][: rng.choice((1, 2))]
    for one in inside:
        for other in (*cluster.brokers, *cluster.controllers):
            if other not in inside:
                cluster.cut(one, other)
                cluster.cut(other, one)
    cluster.story.tell(f"{', '.join(node.host.name for node in inside)} are alone with the clients")
    await cluster.until(
        lambda: any(node.process.role.takes_writes for node in other_brokers(cluster, master)),
        LONG_S,
        "no other broker became master",
    )
    await cluster.clock.sleep(rng.uniform(1.0, 4.0))


async def _elected_by_hand(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    leader = leading_controller(cluster)
    if leader is None:
        return
    for controller in cluster.controllers:
        cluster.cut(controller, master)
        cluster.cut(master, controller)
    cluster.story.tell(f"{master.host.name}, the master, and the controllers do not reach each other")
    await cluster.clock.sleep(rng.uniform(0.0, 0.2))
    chosen = rng.choice(other_brokers(cluster, master))
    cluster.story.tell(f"an operator makes {chosen.host.name} master")
    await cluster.elect(leader, chosen)
    await cluster.until(
        lambda: chosen.process.role.takes_writes, LONG_S, "who was chosen never became master", step_s=0.02
    )
    await cluster.clock.sleep(rng.uniform(1.0, 4.0))


async def _confirm_of_another_epoch(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    for node in other_brokers(cluster, master):
        cluster.cut(master, node)
    await cluster.clock.sleep(rng.uniform(0.5, 1.5))
    await kill(cluster, master)
    second = await find_master(cluster)
    for node in other_brokers(cluster, master, second):
        await kill(cluster, node)
    cluster.open_all()
    await start(cluster, master)
    await cluster.until(
        lambda: (found := set_of(second)) is not None and len(found.members) == 2,
        LONG_S,
        "the old master never follows",
        step_s=0.02,
    )
    await kill(cluster, second)
    await cluster.until(
        lambda: cluster.master() is master, LONG_S, "the old master never leads again", step_s=0.02
    )
    cluster.watch.look()
    await cluster.clock.sleep(rng.uniform(0.1, 1.0))
    await start(cluster, *cluster.brokers)


async def _wrong_controller(cluster: Cluster, rng: random.Random) -> None:
    await full_set(cluster)
    for _ in range(2):
        leader = leading_controller(cluster)
        for controller in cluster.controllers if leader is None else [leader]:
            cluster.network.isolate(controller.host.name)
            cluster.story.tell(f"{controller.host.name} is cut off")
            await cluster.clock.sleep(rng.uniform(16.0, 18.0))  # time until connections to it break
            cluster.network.rejoin(controller.host.name)
            cluster.story.tell(f"{controller.host.name} is reachable again")
            await cluster.clock.sleep(rng.uniform(0.1, 1.0))
    await kill(cluster, await find_master(cluster))
    await find_master(cluster)


async def _bad_disk(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    calls = rng.choice((("sync",), ("sync", "create", "reserve", "replace")))
    master.host.disk.fail = lambda call, path: errno.EIO if call in calls else 0
    cluster.story.tell(f"the disk of {master.host.name}, the master, fails ({', '.join(calls)}) and stays so")
    await cluster.until(
        lambda: any(node.process.role.takes_writes for node in other_brokers(cluster, master)),
        LONG_S,
        "a master whose disk fails stays master",
    )
    count = sum(each.offset >= 0 for each in cluster.clients.sent)
    await cluster.until(
        lambda: sum(each.offset >= 0 for each in cluster.clients.sent) > count,
        LONG_S,
        "nothing is acknowledged while a replica's disk is bad",
    )
    master.host.disk.fail = lambda call, path: 0
    await kill(cluster, master)


async def _unreplicated_master(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    for node in other_brokers(cluster, master):
        cluster.cut(master, node)
    cluster.story.tell(f"nothing gets from {master.host.name}, the master, to the other brokers")
    await cluster.clock.sleep(rng.uniform(0.3, 1.5))
    await kill(cluster, master)
    cluster.open_all()
    await find_master(cluster)
    await cluster.clock.sleep(rng.uniform(0.3, 1.0))
    await start(cluster, master)


async def _left_behind(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    behind = await _one_leaves(cluster, rng, master)
    await cluster.clock.sleep(rng.uniform(0.5, 2.0))
    await kill(cluster, *other_brokers(cluster, behind))
    await start(cluster, behind)
    await cluster.clock.sleep(rng.uniform(8.0, 14.0))
    await start(cluster, *cluster.brokers)


async def _slow_to_join(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    behind = await _one_leaves(cluster, rng, master)
    await cluster.clock.sleep(rng.uniform(0.5, 2.0))
    await start(cluster, behind)
    await cluster.until(
        lambda: len(master.process.replication.mode.replicas()) == 2,
        LONG_S,
        "it never follows",
        step_s=FINE_S,
    )
    cluster.cut(master, behind)  # the bytes that it lacks are in flight
    await cluster.clock.sleep(rng.uniform(0.5, 2.0))
    await kill(cluster, *other_brokers(cluster, behind))
    cluster.open_all()
    await cluster.clock.sleep(rng.uniform(12.0, 15.0))
    await start(cluster, *cluster.brokers)


async def _power_of_all(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    for node in cluster.brokers:
        node.host.executor.delay_s = rng.uniform(0.05, 0.3)
    await cluster.clock.sleep(rng.uniform(0.5, 2.0))
    await cluster.until(
        lambda: master.process.store.durability.unflushed_bytes > 0,
        LONG_S,
        "no producer sends to a master whose disk is slow",
        step_s=FINE_S,
    )
    await cluster.clock.sleep(rng.uniform(0.0, 0.1))  # while the disks sync the newest records
    await kill(cluster, *cluster.brokers, power=True)
    for node in cluster.brokers:
        node.host.executor.delay_s = 0.0
    await start(cluster, *cluster.brokers)


async def _rolling_restart(cluster: Cluster, rng: random.Random) -> None:
    await full_set(cluster)
    for node in (
        *cluster.nameservers,
        *cluster.controllers,
        *rng.sample(cluster.brokers, len(cluster.brokers)),
    ):
        await cluster.end(node)
        await cluster.clock.sleep(rng.uniform(0.1, 2.0))
        await start(cluster, node)
        if node in cluster.brokers:
            await full_set(cluster)


async def _clocks_are_set(cluster: Cluster, rng: random.Random) -> None:
    await full_set(cluster)
    for _ in range(6):
        node = rng.choice(cluster.nodes)
        node.host.clock.wall_offset_ms = rng.randint(-3_600_000, 3_600_000)
        node.host.clock.set_rate(1 + rng.uniform(-0.0098, 0.0098))
        cluster.story.tell(
            f"the clock of {node.host.name} is set by {node.host.clock.wall_offset_ms / 1000:.0f} s and runs "
            f"{node.host.clock.rate:.4f} times as fast"
        )
        await cluster.clock.sleep(rng.uniform(0.2, 3.0))
    await kill(cluster, await find_master(cluster))
    await find_master(cluster)


async def _hanging_connections(cluster: Cluster, rng: random.Random) -> None:
    await full_set(cluster)
    for _ in range(4):
        one, other = rng.sample(cluster.nodes, 2)
        cluster.network.hang(one.host.name, other.host.name)
        cluster.story.tell(f"the open connections of {one.host.name} and {other.host.name} hang")
        await cluster.clock.sleep(rng.uniform(0.5, 5.0))


async def _full_disk(cluster: Cluster, rng: random.Random) -> None:
    master = await full_set(cluster)
    node = rng.choice((master, rng.choice(other_brokers(cluster, master))))
    disk = node.host.disk
    before, disk.total_bytes = disk.total_bytes, disk.used_bytes
    cluster.story.tell(f"the disk of {node.host.name} is full")
    await cluster.clock.sleep(rng.uniform(5.0, 20.0))
    disk.total_bytes = before
    cluster.story.tell(f"there is room on the disk of {node.host.name}")
    await kill(cluster, node)
    await start(cluster, node)


_ALL = (
    Scenario(
        "set-grows-early",
        "RocketMQ 5663: the controllers took a replica into the set, their reply was lost, and the master continued without it",
        _set_grows_early,
    ),
    Scenario(
        "level-while-set-grows",
        "the same where only messages with ACK_LEVEL=replicated wait for replicas",
        _set_grows_early,
        Settings(waits_for_replicas=False, kept_by=3, streams=(Traffic(Kind.TOPIC_LEVEL, Way.PUSH),)),
    ),
    Scenario(
        "batches-before-their-topic",
        "a slave with an empty disk copied batches before the settings of their BatchCQ topic, and followed no more",
        _batches_before_their_topic,
        Settings(streams=(Traffic(Kind.BATCH_QUEUE, Way.PUSH),)),
    ),
    Scenario(
        "masters-by-turns",
        "a new master did not read in its log which keys were stored, what was popped, and what waited",
        _masters_by_turns,
        Settings(features=True, streams=(Traffic(Kind.DEDUP, Way.PUSH),)),
    ),
    Scenario(
        "cut-and-again",
        "a master whose log was cut led again with its own offsets: it never asked about an open transaction",
        _cut_and_again,
        Settings(features=True),
    ),
    Scenario(
        "popped-and-cut",
        "a deposed master gave back the offsets of what it had popped alone, and the group skipped it",
        popped_and_cut,
        Settings(features=True),
    ),
    Scenario(
        "down-after-pops",
        "a restarted broker read its log as far as the last run had confirmed it, and took it for read when it was elected: what was "
        "acknowledged behind that was handed out again",
        down_after_pops,
        Settings(features=True),
    ),
    Scenario(
        "synced-late",
        "an elected broker read what was popped in its log as far as the disk had synced it: what a member popped and acknowledged "
        "there came again",
        synced_late,
        Settings(features=True, sync_disk=True),
    ),
    Scenario(
        "grpc-clients",
        "clients of gRPC and of remoting send to one topic and receive with one group, while masters change",
        _masters_by_turns,
        Settings(features=True, has_grpc=True),
    ),
    Scenario(
        "shared-queue-offsets",
        "RocketMQ 7689: master and leading controller died together, and what was sent then got the queue offsets of what lay "
        "behind the confirm offset",
        _shared_queue_offsets,
    ),
    Scenario(
        "two-masters",
        "RocketMQ 7017: a master isolated together with a controller continued to reply while another one was elected",
        _two_masters,
        Settings(waits_for_replicas=False),
    ),
    Scenario(
        "elected-by-hand",
        "another master is elected while the current one is isolated and replies under its lease",
        _elected_by_hand,
        Settings(waits_for_replicas=False),
    ),
    Scenario(
        "confirm-of-another-epoch",
        "RocketMQ 7923: a confirm offset of one epoch was used in another, behind the end of the log it was for",
        _confirm_of_another_epoch,
        Settings(waits_for_replicas=False),
    ),
    Scenario(
        "wrong-controller",
        "RocketMQ 10812: after controllers were out of reach for a while brokers sent no heartbeats to the one that leads",
        _wrong_controller,
    ),
    Scenario("bad-disk", "DLedger 287: a disk that failed, and heartbeats that continued", _bad_disk),
    Scenario(
        "unreplicated-master", "the master's log reaches no replica, and then it dies", _unreplicated_master
    ),
    Scenario("left-behind", "the only replica that runs is one that was not in sync", _left_behind),
    Scenario(
        "slow-to-join", "the others die while a replica that comes back is still catching up", _slow_to_join
    ),
    Scenario(
        "power-of-all",
        "all brokers, whose disks are slow, lose power simultaneously",
        _power_of_all,
        Settings(sync_disk=True),
    ),
    Scenario(
        "rolling-restart", "every process is stopped and started, one after the other", _rolling_restart
    ),
    Scenario("clocks-are-set", "clocks jump by up to an hour and change their speed", _clocks_are_set),
    Scenario(
        "hanging-connections", "open connections carry nothing any more, new ones work", _hanging_connections
    ),
    Scenario("full-disk", "a disk is full for a while", _full_disk),
    Scenario(
        "features",
        "delays, transactions and POP under random faults",
        features_under_faults,
        Settings(features=True),
    ),
    Scenario(
        "schedules",
        "every tick of recurring schedules once, over changes of master",
        schedules_over_changes,
    ),
    Scenario(
        "classic",
        "the same at a master and two slaves without controllers and elections",
        features_under_faults,
        Settings(controllers=False, features=True, sync_disk=True),
    ),
)
SCENARIOS = {each.name: each for each in _ALL}


def scenario(name: str) -> Scenario:
    """The scenario of this name. Raises KeyError for an unknown name."""
    return SCENARIOS[name]


__all__ = ["SCENARIOS", "Broken", "Checker", "Scenario", "scenario"]
