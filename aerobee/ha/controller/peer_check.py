"""Checks the sender of Raft frames: it must have the host that controllerDLegerPeers names for the controller that the
frame claims as its sender.

Applies where no key is configured. Without the check, one frame of any peer could depose the leader or replace the
members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aerobee.clock import Clock
from aerobee.host_port import split_address
from aerobee.peer_hosts import PeerHosts

PAUSE_S = 1.0  # between two look-ups of names, however many frames come


class PeerCheck:
    """The hosts of the other controllers. Belongs to the event loop."""

    def __init__(self, peers: Mapping[str, str], clock: Clock, hosts: PeerHosts | None = None) -> None:
        """`peers`: id to "host:port"."""
        self._hosts = {name: split_address(address)[0] for name, address in peers.items()}
        self._found = hosts or PeerHosts()
        self._clock = clock
        self._next_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def refusal(self, source: str, address: str) -> str:
        """Reason why a frame of the controller `source` cannot come from `address`; "" when it can.

        A host name may have a new address: after a refusal it is resolved again, so that a later frame is accepted.
        Raft repeats the lost message.
        """
        host = self._hosts.get(source)
        if host is None:
            return f"{source[:80]!r} is not in controllerDLegerPeers"
        if self._found.is_at(address, host):
            return ""
        self._look()
        return (
            f"{address} is not {host}, where controllerDLegerPeers has {source}: behind NAT, or with several addresses, set "
            "authenticationEnabled and a key at every controller"
        )

    async def stop(self) -> None:
        """End a look-up that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _look(self) -> None:
        if self._looking is not None and not self._looking.done():
            return
        if self._clock.monotonic() >= self._next_s:
            self._next_s = self._clock.monotonic() + PAUSE_S
            self._looking = asyncio.create_task(self._found.look(self._hosts.values()), name="peer-hosts")
