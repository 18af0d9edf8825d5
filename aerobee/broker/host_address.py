"""Which address a broker advertises when its configuration names none."""

from __future__ import annotations

import ipaddress
import socket


def advertised_ip(bound_host: str) -> str:
    """Return the host it is bound to if that is one address, else the address from which this machine calls others.

    No packet is sent: connecting a datagram socket only asks the routing table. Loopback when there is no route.
    """
    try:
        bound = ipaddress.ip_address(bound_host)
    except ValueError:
        return bound_host or _outgoing_ip()
    return _outgoing_ip() if bound.is_unspecified else bound_host


def packable_ip(host: str) -> str:
    """The address that stands in records for an advertised host, which may be a name. Loopback when unknown."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return socket.gethostbyname(host)
    except OSError:
        return "127.0.0.1"


def _outgoing_ip() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
