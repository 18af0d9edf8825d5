"""Ports one behind the other, below those that the system gives to outgoing connections: no other process takes one by chance."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

LOWEST, HIGHEST = 12_000, 20_000


def free_block(count: int) -> int:
    """The first of so many ports of 127.0.0.1 that are all free now."""
    for _ in range(200):
        first = random.randrange(LOWEST, HIGHEST - count)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError(f"no {count} ports one behind the other are free between {LOWEST} and {HIGHEST}")
