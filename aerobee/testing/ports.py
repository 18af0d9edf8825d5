"""Ports for the servers of tests, outside the range from which the kernel takes ports for outgoing connections.

A port that the kernel chose (a bind to port 0) is safe only while it stays bound: as soon as its server stops, any connection of
any process may get that port, and the server cannot start again at its address. These ports have no such taker.

All processes of one user on a machine draw from one counter, a locked file in the temporary directory, so that a port is
handed out a second time only after a whole round of the range, thousands of ports later. Each port is bound once before it is
handed out. Where the file cannot be used, a process begins at a random port.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from aerobee.host_port import PORT_MAX, bare_host
from aerobee.system import open_locked, unlock_and_close

WANTED = range(20_000, 32_000)
PORT_MIN = 1_024  # below it a bind needs privileges
FEWEST = 1_000  # a smaller range would hand out a port again while its server is stopped
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Of Linux; macOS and Windows take 49,152 and more.
EPHEMERAL_DEFAULT = range(32_768, 61_000)
LOCK_TIMEOUT_S = 5.0
LOCK_PAUSE_S = 0.001
COUNTER_BYTES_MAX = 16


def free_ports(count: int) -> list[int]:
    """`count` ports that are free now, in no order."""
    return [free_block(1) for _ in range(count)]


def free_broker_port(host: str = "127.0.0.1") -> int:
    """A port for a broker: its second port (port - 2) and its HA port (port + 1) are free too."""
    return free_block(4, host) + 2


def free_block(count: int, host: str = "127.0.0.1") -> int:
    """The first of `count` consecutive ports that are free now on `host` and on every IPv4 address. Raises OSError when there is no such block."""
    ports = usable_ports(_ephemeral())
    for _ in range(2 * len(ports) // count):
        first = _draw(count, ports)
        if _are_free(range(first, first + count), host):
            return first
    raise OSError(
        errno.EADDRINUSE, f"no {count} consecutive ports are free from {ports.start} to {ports.stop - 1}"
    )


def usable_ports(ephemeral: range) -> range:
    """The ports to choose from, on a machine whose kernel takes `ephemeral` for outgoing connections. Core.

    `WANTED` without those; where too few are left, the ports below or above; where there are none, `WANTED` after all.
    """
    below = range(WANTED.start, min(WANTED.stop, ephemeral.start))
    candidates = (
        below,
        range(max(WANTED.start, ephemeral.stop), WANTED.stop),
        range(PORT_MIN, min(WANTED.start, ephemeral.start)),
        range(max(WANTED.stop, ephemeral.stop), PORT_MAX + 1),
    )
    return next((each for each in candidates if len(each) >= FEWEST), WANTED)


def _ephemeral() -> range:
    try:
        first, last = EPHEMERAL.read_text().split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return EPHEMERAL_DEFAULT


def _draw(count: int, ports: range) -> int:
    """The first of the next `count` ports; the counter of all processes stands behind them on return."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = Path(tempfile.gettempdir()) / f"aerobee-test-ports-{user}"
    try:
        descriptor = _open_counter(path)
    except OSError:
        descriptor = None
    if descriptor is None:
        return random.randrange(ports.start, ports.stop - count)
    try:
        text = os.read(descriptor, COUNTER_BYTES_MAX)
        first = int(text) if text else random.choice(ports)
        if not (ports.start <= first and first + count <= ports.stop):
            first = ports.start
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.truncate(descriptor, os.write(descriptor, b"%d" % (first + count)))
        return first
    finally:
        unlock_and_close(descriptor)


def _open_counter(path: Path) -> int | None:
    """The locked file, read from its start; None when another process does not release it, or when it is no counter of ours."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while (descriptor := open_locked(path)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(LOCK_PAUSE_S)
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, COUNTER_BYTES_MAX + 1)
    os.lseek(descriptor, 0, os.SEEK_SET)
    # Any user may write to the temporary directory: a link there must not lead the counter into another file.
    is_ours = os.path.samestat(os.fstat(descriptor), os.lstat(path)) and os.fstat(descriptor).st_nlink == 1
    if is_ours and len(text) <= COUNTER_BYTES_MAX and (not text or text.isdigit()):
        return descriptor
    unlock_and_close(descriptor)
    return None


def _are_free(ports: range, host: str) -> bool:
    with ExitStack() as held:
        try:
            for port in ports:
                held.enter_context(socket.socket()).bind(("", port))
                if ":" in host:
                    held.enter_context(socket.socket(socket.AF_INET6)).bind((bare_host(host), port))
        except OSError:
            return False
    return True
