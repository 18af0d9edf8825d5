"""Changes of machines and settings: a replica or controller that restarts with an empty disk, and a key at the HA port
that is added or removed.

Each change sends the requests that an operator sends, and waits for their effect as an operator does.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.errors import AerobeeError
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.node import Node
from aerobee.simulation.restart import start

Work = Callable[[], Coroutine[Any, Any, None]]
TAKEN_IN_S = 20.0  # longest wait until a new replica is in sync
REPLACED_S = 60.0  # longest wait until a new controller has a vote
DOWN_S_MAX = 1.0
RETRY_S = 0.5
LOOK_S = 0.1
NEW_REPLICA, NEW_CONTROLLER, OTHER_KEY = (
    "replica with a new disk",
    "controller with a new disk",
    "key at the HA port put in or taken out",
)


class Churn:
    """One such change, drawn from its random numbers."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng

    def all(self) -> list[tuple[str, Work]]:
        """Names and functions of these faults."""
        return [
            (NEW_REPLICA, self.new_replica),
            (NEW_CONTROLLER, self._new_controller),
            (OTHER_KEY, self._other_key),
        ]

    async def new_replica(self) -> None:
        """A slave loses its disk while the master and another one are in sync, and copies everything again."""
        cluster = self._cluster
        master = cluster.master()
        if master is None or not self._are_in_sync(master, len(cluster.brokers)):
            return
        node = self._rng.choice([each for each in cluster.brokers if each is not master])
        if node.process is None or node.is_paused:
            return
        await cluster.kill(node, power=False)
        node.host.replace_disk()
        cluster.story.tell(f"{node.host.name} gets an empty disk")
        await cluster.clock.sleep(self._rng.uniform(0.02, DOWN_S_MAX))
        await start(cluster, node)
        await self._wait(TAKEN_IN_S, lambda: self._has_copied(node))
        cluster.contacts.fault(NEW_REPLICA)

    def _are_in_sync(self, master: Node | None, count: int) -> bool:
        if master is None or master.process is None:
            return False
        mode = master.process.replication.mode
        return isinstance(mode, AutoSwitchMode) and len(mode.members) >= count

    def _has_copied(self, node: Node) -> bool:
        master = self._cluster.master()
        if master is None or node.process is None:
            return False
        return bool(node.process.store.log.end >= master.process.replication.mode.confirm_offset > 0)

    async def _new_controller(self) -> None:
        """A controller loses its disk; the operator removes it and adds it again as a new member."""
        cluster = self._cluster
        if cluster.replaced_controller is not None:  # a majority of the controllers must keep its disks
            return
        node = self._rng.choice(cluster.controllers)
        if node.process is None or node.is_paused:
            return
        cluster.replaced_controller = node
        try:
            await cluster.kill(node, power=False)
            node.host.replace_disk()
            cluster.story.tell(f"{node.host.name} gets an empty disk")
            await cluster.clock.sleep(self._rng.uniform(0.02, DOWN_S_MAX))
            await start(cluster, node)
            member = f"n{node.index}"
            await self._until_done(lambda: cluster.change_quorum("remove", member), member, False)
            await self._until_done(lambda: cluster.change_quorum("addLearner", member), member, None)
            await self._until_done(lambda: cluster.change_quorum("promote", member), member, True)
            cluster.story.tell(f"{node.host.name} is a member again")
            cluster.contacts.fault(NEW_CONTROLLER)
        finally:
            cluster.replaced_controller = None

    async def _until_done(
        self, step: Callable[[], Awaitable[None]], member: str, is_voter: bool | None
    ) -> None:
        """Repeat the step until the membership is as wanted: a reply may be lost. `is_voter` None: `member`
        must be a member, with or without a vote.
        """
        clock = self._cluster.clock
        end = clock.monotonic() + REPLACED_S
        while clock.monotonic() < end:
            status = self._cluster.quorum_status()
            if status is not None:
                voters, learners = status
                if is_voter is None and member in (*voters, *learners):
                    return
                if (
                    is_voter is not None
                    and is_voter == (member in voters)
                    and (is_voter or member not in learners)
                ):
                    return
                try:
                    await step()
                except AerobeeError as error:
                    self._cluster.story.tell(f"not yet: {error}")
            await clock.sleep(RETRY_S)

    async def _other_key(self) -> None:
        """Restart every broker with or without the key at the HA port; the master last."""
        cluster = self._cluster
        cluster.has_ha_key = not cluster.has_ha_key
        cluster.story.tell(
            f"from now on brokers have {'a' if cluster.has_ha_key else 'no'} key at the HA port"
        )
        master = cluster.master()
        for node in sorted(cluster.brokers, key=lambda each: each is master):
            await self._again(node)
            while not self._has_the_key(node):  # another fault has started it with the former setting
                await self._again(node)
            cluster.contacts.fault(OTHER_KEY)

    async def _again(self, node: Node) -> None:
        await self._cluster.end(node)
        await start(self._cluster, node)

    def _has_the_key(self, node: Node) -> bool:
        process = node.process
        return process is not None and bool(process.store.config.ha_shared_key) == self._cluster.has_ha_key

    async def _wait(self, seconds: float, condition: Callable[[], bool]) -> None:
        clock = self._cluster.clock
        end = clock.monotonic() + seconds
        while not condition() and clock.monotonic() < end:
            await clock.sleep(LOOK_S)
