"""Free pairs of ports."""

from __future__ import annotations

from aerobee.ops.servers.listening import free_ports


def free_port_pair() -> tuple[int, int]:
    first, nameserver = free_ports(2)
    return min(first, 65_000), nameserver
