"""Hosts of this group's brokers as the controllers know them. They verify a slave's claim of a broker id, which it does
not prove otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.log_throttle import LogThrottle
from aerobee.peer_hosts import PeerHosts

log = logging.getLogger(__name__)
PAUSE_S = 0.2  # between two queries, so that a peer that claims ids in a loop causes at most five per second
RETRY_S = 0.5


class ReplicaHosts:
    """The host of each broker id. start(), `await stop()`; belongs to the event loop.

    It queries the controllers again whenever a claim does not match the known hosts, because a moved broker reports its
    address to the controllers before it connects.
    """

    def __init__(
        self,
        *,
        ask: Callable[[], Awaitable[Mapping[int, tuple[str, ...]]]],
        clock: Clock,
        names: PeerHosts | None = None,
    ) -> None:
        """`ask` returns each "host:port" of the ids of the group; raises what a call to the controllers raises."""
        self.on_news: Callable[[], None] = _nothing  # called when the controllers have answered
        self.generation = 0  # number of answers so far
        self._asked = 0  # number of queries so far, including a pending one
        self._ask = ask
        self._clock = clock
        self._names = names or PeerHosts()
        self._hosts: dict[int, tuple[str, ...]] = {}
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._throttle = LogThrottle(log, clock.monotonic)

    def start(self) -> None:
        """Start the task that serves want(), in the running event loop."""
        self._task = asyncio.create_task(self._keep(), name="replica-hosts")

    async def stop(self) -> None:
        """End the task; the known hosts stay."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def is_at(self, broker_id: int, address: str) -> bool:
        """Whether the broker of this id is known to be at an address."""
        return any(self._names.is_at(address, host) for host in self._hosts.get(broker_id, ()))

    def known_hosts(self, broker_id: int) -> str:
        """The hosts of a broker, with commas between; "" when the controllers name none."""
        return ", ".join(self._hosts.get(broker_id, ()))

    def want(self) -> int:
        """Ask the controllers. Returns the `generation` of the first answer to a question that was not under way before."""
        self._wanted.set()
        return self._asked + 1

    async def _keep(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._asked += 1
            while not await self._look():
                await self._clock.sleep(RETRY_S)
            self.generation = self._asked
            self.on_news()
            await self._clock.sleep(PAUSE_S)

    async def _look(self) -> bool:
        try:
            found = await self._ask()
            hosts = {
                broker_id: tuple(dict.fromkeys(address.rpartition(":")[0] for address in addresses))
                for broker_id, addresses in found.items()
            }
            await self._names.look(host for each in hosts.values() for host in each)
        except AerobeeError as error:
            self._throttle.warn("", "the controllers do not say where this group's brokers are: %s", error)
            return False
        except Exception:
            # The task's outermost edge: without it every slave that is to be looked up would wait for ever.
            log.exception("finding out where this group's brokers are failed; trying again")
            return False
        self._hosts = hosts
        return True


def _nothing() -> None:
    """Until a caller waits."""
