"""Which addresses the hosts have that settings and controllers name, to compare with where a connection comes from.

A host is an address or a name. Names are looked up when the owner asks for it, off the event loop; an address that a name once
had no longer counts after the next look-up that succeeds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache

from aerobee.host_port import is_ip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LookUp = Callable[[str], Awaitable[Iterable[str]]]
LOOK_UP_S = 5.0
NAMES_MAX = 256
SPELLINGS_KEPT = 256  # every frame of a peer brings the same few addresses
_LOOPBACK = frozenset({"127.0.0.1", "::1"})


async def look_up(host: str) -> Iterable[str]:
    """The addresses of a host name. Raises OSError, TimeoutError."""
    async with asyncio.timeout(LOOK_UP_S):
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


@lru_cache(SPELLINGS_KEPT)
def plain_address(address: str) -> str:
    """One spelling of an address: without brackets and zone, IPv4 also where it came mapped into IPv6. Names stay as they are."""
    bare = address.strip("[]").partition("%")[0]
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        return bare.lower()
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read addresses and networks, with commas or semicolons between. Raises ValueError naming the part that is neither."""
    parts = (part.strip().replace("[", "").replace("]", "") for part in text.replace(";", ",").split(","))
    return tuple(ipaddress.ip_network(part, strict=False) for part in parts if part)


def is_within(address: str, networks: Iterable[Network]) -> bool:
    """Whether an address is one of these, or of these networks."""
    try:
        parsed = ipaddress.ip_address(plain_address(address))
    except ValueError:
        return False
    return any(parsed in network for network in networks)


class PeerHosts:
    """The addresses of named hosts, as the last look-up found them. Belongs to the event loop."""

    def __init__(self, look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self._found: dict[str, frozenset[str]] = {}

    def is_at(self, address: str, host: str) -> bool:
        """Whether `host` has this address, as far as it is known.

        A host whose address is a loopback one also counts as 127.0.0.1 and ::1, from where the system calls all of them.
        """
        named, plain = plain_address(host), plain_address(address)
        addresses = frozenset({named}) if is_ip(named) else self._found.get(named, frozenset())
        if plain in addresses:
            return True
        return plain in _LOOPBACK and any(ipaddress.ip_address(each).is_loopback for each in addresses)

    async def look(self, hosts: Iterable[str]) -> None:
        """Look the names among these hosts up again. What cannot be looked up now keeps the addresses that it had."""
        names = {named for host in hosts if host and not is_ip(named := plain_address(host))}
        self._found = {name: each for name, each in self._found.items() if name in names}
        await asyncio.gather(*(self._look_at(name) for name in sorted(names)[:NAMES_MAX]))

    async def _look_at(self, name: str) -> None:
        try:
            addresses = await self._look_up(name)
        except (OSError, TimeoutError):
            return
        found = (plain_address(each) for each in addresses)
        self._found[name] = frozenset(each for each in found if is_ip(each))
