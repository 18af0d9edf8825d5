"""Periodically computes the queues that this member of a group owns.

Follows RebalanceImpl and RebalanceService: every 20 s, immediately when a broker notifies of changed members, and after
a second when the last round could not be finished. Members read the member list from one broker of the topic, and each
computes the same allocation. Or a broker computes it (client_rebalance=False) and selects pull or POP for each queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from aerobee.client.base.topic_route import TopicRoute, subscribe_queues
from aerobee.client.consumer.allocation import Allocation
from aerobee.client.consumer.broker_calls import first_answer
from aerobee.client.consumer.pop_calls import query_assignment
from aerobee.client.session.session import Session
from aerobee.errors import AerobeeError, RemoteSystemError, TopicNotExist, TransportError
from aerobee.log_throttle import RepeatedWarnings
from aerobee.message import MessageQueue
from aerobee.remoting.body.member_list import holder_of
from aerobee.remoting.protocol import MASTER_ID

log = logging.getLogger(__name__)

UNBALANCED_S = 1.0  # pause after a round that could not be finished

Apply = Callable[[str, frozenset[MessageQueue]], Awaitable[bool]]
ApplyPops = Callable[[str, frozenset[MessageQueue]], None]


class Rebalancer:
    """Runs rounds. `apply(topic, queues)` sets the owned queues of a topic; False: run another round soon."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        broadcasting: bool,
        allocation: Allocation,
        topics: Callable[[], Iterable[str]],
        apply: Apply,
        interval_s: float,
        apply_pops: ApplyPops | None = None,
    ) -> None:
        """`apply_pops(topic, queues)`: let a broker assign the queues; these are the queues to pop."""
        self._apply_pops = apply_pops
        self._session = session
        self._group = group
        self._broadcasting = broadcasting
        self._allocation = allocation
        self._topics = topics
        self._apply = apply
        self._interval_s = interval_s
        self._wanted = asyncio.Event()
        self._warnings = RepeatedWarnings(log)
        self.failures: dict[str, AerobeeError] = {}  # error of the newest round, by topic

    def wake(self) -> None:
        """Run another round as soon as the present one has ended."""
        self._wanted.set()

    async def run(self) -> None:
        """Run rounds until cancelled; the first immediately."""
        while True:
            self._wanted.clear()
            balanced = await self.round()
            timer = self._session.clock.call_later(
                self._interval_s if balanced else UNBALANCED_S, self._wanted.set
            )
            try:
                await self._wanted.wait()
            finally:
                timer.cancel()

    async def round(self) -> bool:
        """One round over all topics; True when every topic is assigned completely."""
        balanced = True
        for topic in tuple(self._topics()):
            try:
                balanced = await self._balance(topic) and balanced
                self.failures.pop(topic, None)
            except TopicNotExist:
                self.failures.pop(topic, None)
                # The retry topic appears after the first heartbeat, others when they are created: the route
                # refresh finds them and wakes us.
                await self._apply(topic, frozenset())
            except AerobeeError as error:
                # Keep the owned queues: no better allocation is known at the moment.
                balanced = False
                self.failures[topic] = error
                if self._session.is_open:  # brokers remove a leaving member before its requests stop
                    text = f"rebalance of topic {topic} in group {self._group}: {error}"
                    if isinstance(error, TransportError) or self._session.peers.explains(error):
                        self._session.peers.trouble(log, error, "%s", text)
                    else:
                        self._warnings.warn(topic, text)
            except Exception:
                # Boundary to user code: a custom allocation may raise any exception.
                log.exception("allocation of topic %s in group %s failed", topic, self._group)
                balanced = False
        return balanced

    async def _balance(self, topic: str) -> bool:
        route = await self._session.routes.get(topic)
        queues = subscribe_queues(route)
        if self._broadcasting:
            return await self._apply(topic, frozenset(queues))
        addresses = self._askable(route)
        if not addresses:
            return False
        if self._apply_pops is not None:
            return await self._take_assignment(topic, addresses[0], self._apply_pops)
        try:
            ids = await first_answer(self._session, self._group, addresses)
        except RemoteSystemError:
            # "No consumer for this group": a broker that was restarted and has no heartbeat of the group yet.
            await self._session.heartbeat()
            ids = await first_answer(self._session, self._group, addresses)
        own_id = self._session.client_id
        if (holder := holder_of(own_id, ids)) is not None:
            self._warnings.warn(
                "",
                f"another client, at {holder}, has the client id {own_id} in group {self._group}, too, and its queues: this one gets none. "
                "Give each its own ClientConfig.instance, or leave it out",
            )
            return await self._apply(topic, frozenset())
        if own_id not in ids:
            # The broker does not know this client yet, or no longer because it was restarted.
            await self._session.heartbeat()
            ids = await first_answer(self._session, self._group, addresses)
        if own_id not in ids:
            if self._session.is_open:
                self._warnings.warn(
                    "", f"no broker lists {own_id} as a member of {self._group}: others share its queues"
                )
            await self._apply(topic, frozenset())
            return False
        self._warnings.clear(topic)
        self._warnings.clear("")
        share = frozenset(self._allocation(own_id, queues, ids))
        return await self._apply(topic, share.intersection(queues))

    async def _take_assignment(self, topic: str, address: str, apply_pops: ApplyPops) -> bool:
        """Apply a broker's assignment; without one nothing changes."""
        await self._session.heartbeat_to(address)
        assignment = await query_assignment(self._session, self._group, topic, address)
        if assignment is None:
            return False
        pulled, popped = assignment
        apply_pops(topic, popped)
        return await self._apply(topic, pulled)

    def _askable(self, route: TopicRoute) -> list[str]:
        """One address of each broker of the route, the master's where there is one, in random order."""
        addresses = [
            broker.broker_addrs.get(MASTER_ID, broker.broker_addrs[min(broker.broker_addrs)])
            for broker in route.brokers
            if broker.broker_addrs
        ]
        self._session.random.shuffle(addresses)
        return addresses
