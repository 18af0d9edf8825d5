"""The gRPC ports of `aerobee up`: one a broker, from 8081 on, for RocketMQ 5's own clients."""

from __future__ import annotations

from aerobee.broker.assembly.grpc_packages import grpc_is_installed
from aerobee.errors import UsageError
from aerobee.host_port import PORT_MAX
from aerobee.ops.servers.listening import require_free_port
from aerobee.ops.terminal.failure import LocalRefused, PortTaken
from aerobee.words import plural

PORT = 8_081  # grpcServerPort of RocketMQ's proxy
PORTS_TRIED = 100  # from PORT on, without --grpc-port
NOT_INSTALLED = "not served: it needs protobuf, pip install 'aerobee[grpc]'"


def grpc_ports(port: int | None, *, host: str, count: int, taken: frozenset[int]) -> tuple[int, ...] | str:
    """The ports of `count` brokers: from `port` on, or, for None, the first free ones from PORT on that are not `taken`.

    Returns the reason as text when a package is missing or, for None, when there are too few. Raises PortTaken when one from
    `port` on is in use, UsageError when it is that of another server of `up`.
    """
    if not grpc_is_installed():
        return NOT_INSTALLED
    if port is not None:
        found = tuple(range(port, port + count))
        if found[-1] > PORT_MAX:
            raise UsageError(
                f"--grpc-port {port} is too high for {plural(count, 'broker')}: the last port would be {found[-1]}"
            )
        if both := taken.intersection(found):
            raise UsageError(f"--grpc-port: port {min(both)} is that of another server; choose another one")
        for each in found:
            require_free_port(host, each, "gRPC", "--grpc-port")
        return found
    free: list[int] = []
    for tried in range(PORT, PORT + PORTS_TRIED):
        if tried not in taken and _is_free(host, tried):
            free.append(tried)
            if len(free) == count:
                return tuple(free)
    return f"not served: too few of the ports {PORT} to {PORT + PORTS_TRIED - 1} are free; choose others with --grpc-port"


def _is_free(host: str, port: int) -> bool:
    try:
        require_free_port(host, port, "gRPC", "--grpc-port")
    except (PortTaken, LocalRefused):
        return False
    return True
