"""The address that a broker advertises without a configured one."""

from __future__ import annotations

import ipaddress
import socket

from aerobee.host_port import WILDCARDS, bare_host, is_ip

# No packet is sent: connecting a datagram socket only looks up the route.
_ELSEWHERE = ((socket.AF_INET, "10.255.255.255"), (socket.AF_INET6, "2001:db8::1"))


def advertised_ip(bound_host: str) -> str:
    """Return the bound host if it is a single address or name, else the address from which this machine connects to
    others.

    A wildcard host takes the address of the same family: 0.0.0.0 of IPv4, :: of IPv6, an empty one of IPv4 if there is a
    route, else of IPv6. Loopback when there is no route.
    """
    host = bare_host(bound_host)
    if host not in WILDCARDS:
        return host
    families = {"0.0.0.0": _ELSEWHERE[:1], "::": _ELSEWHERE[1:]}.get(host, _ELSEWHERE)
    for family, elsewhere in families:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((elsewhere, 1))
                return str(probe.getsockname()[0]).partition("%")[0]
            except OSError:
                continue
    return WILDCARDS[host]


def packable_ip(host: str) -> str:
    """Return the IP address to store in records for an advertised host, which may be a name.

    A name with addresses of both kinds resolves to its IPv4 address, as RocketMQ's brokers do. Loopback when the name
    is unknown.
    """
    host = bare_host(host)
    if is_ip(host):
        return str(ipaddress.ip_address(host)).partition("%")[0]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return "127.0.0.1"
    by_family = {family: str(address[0]) for family, _, _, _, address in reversed(found)}
    return by_family.get(socket.AF_INET) or by_family[socket.AF_INET6].partition("%")[0]
