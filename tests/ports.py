"""Ports of servers that a test starts later, or starts again at the same address.

The one way in which tests choose a port: no other process takes these by chance, and no two tests get the same one, in whatever
processes they run (aerobee/testing/ports.py). A server that is started once binds port 0 and keeps it.
"""

from __future__ import annotations

from aerobee.testing.ports import free_block, free_broker_port, free_ports

__all__ = ["free_block", "free_broker_port", "free_port", "free_ports"]


def free_port() -> int:
    """A port with nothing at it. For a broker that has an HA port or a second port take free_broker_port()."""
    return free_block(1)
