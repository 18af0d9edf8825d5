"""Network addresses as text: "host:port", an IPv6 address in brackets. Core.

RocketMQ writes the same form (NetworkUtil.normalizeHostAddress) and splits at the last colon (NetworkUtil.string2SocketAddress).
Text with more than one colon and no brackets is refused: "fe80::1" could be a host without a port, or host "fe80:" with port 1.
"""

from __future__ import annotations

import ipaddress

from aerobee.errors import ConfigError, UsageError

PORT_MAX = 65_535
NAMESERVER_DEFAULT = "127.0.0.1:9876"
CONTROLLER_DEFAULT = "127.0.0.1:9878"
WILDCARDS = {
    "": "127.0.0.1",
    "0.0.0.0": "127.0.0.1",
    "::": "::1",
}  # bound host: the loopback address it covers


def join_address(host: str, port: int) -> str:
    """Return "host:port", or "[host]:port" for an IPv6 address; brackets that are there stay."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def split_address(address: str, key: str = "") -> tuple[str, int]:
    """Return the host, without brackets, and the port of "host:port" or "[IPv6]:port".

    Raises UsageError; with `key`, the name of the setting that holds the address, ConfigError.
    """
    host, colon, port = address.rpartition(":")
    error, subject = (ConfigError, f"{key} has {address!r}:") if key else (UsageError, f"address {address!r}")
    if not (colon and host and port.isascii() and port.isdigit()):
        raise error(f"{subject} must look like host:port, as 127.0.0.1:9876 or [::1]:9876 does")
    if not 0 < int(port[:6]) <= PORT_MAX:
        raise error(f"{subject} has port {port[:20]}; a port is 1 to {PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not is_ip(host) or ":" not in host:
            raise error(f"{subject} has no IPv6 address between the brackets; write [::1]:9876")
    elif ":" in host or "[" in host or "]" in host:
        raise error(f"{subject} is ambiguous; write an IPv6 address in brackets, as in [::1]:9876")
    return host, int(port)


def bare_host(host: str) -> str:
    """Return a host without the brackets of an IPv6 address: "[::1]" and "::1" are the same host."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_ip(host: str) -> bool:
    """Whether a host is an IPv4 or IPv6 address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host, with or without brackets, is reached from its own machine only: "localhost", 127.0.0.0/8, ::1."""
    host = bare_host(host).partition("%")[0]
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
