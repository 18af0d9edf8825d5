"""Names and addresses of the processes of a simulated cluster."""

from __future__ import annotations

from aerobee.host_port import join_address

LOCAL = "127.0.0.1"
TOPIC, GROUP, NAME = "orders", "readers", "broker-a"
QUEUES = 2
NAMESERVERS, CONTROLLERS, BROKERS = 2, 3, 3
NAMESERVER_PORT, CONTROLLER_PORT, BROKER_PORT, HA_PORT = 9_876, 9_890, 10_911, 10_912
PORT_STEP = 10  # distance of the ports of two brokers

NAMESERVER_ADDRESSES = ";".join(join_address(LOCAL, NAMESERVER_PORT + n) for n in range(NAMESERVERS))
PEERS = ";".join(f"n{n}-{join_address(LOCAL, CONTROLLER_PORT + n)}" for n in range(CONTROLLERS))
CONTROLLER_ADDRESSES = ";".join(join_address(LOCAL, CONTROLLER_PORT + n) for n in range(CONTROLLERS))


def broker_at(port: int) -> str:
    """The name of the machine whose broker listens at this port."""
    return f"broker-{(port - BROKER_PORT) // PORT_STEP}"
