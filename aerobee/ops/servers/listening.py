"""Checks before a server starts: the port is free, the directory is writable.

The check runs just before the start and gives a clear error. If another process takes the port in between, the start still
fails safely.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from aerobee.host_port import bare_host, join_address
from aerobee.ops.terminal.failure import LocalRefused, PortTaken


def require_free_port(host: str, port: int, what: str, change: str) -> None:
    """Raise PortTaken when `host:port` cannot be bound. `change` says how to choose another port."""
    if port == 0:
        return
    host = bare_host(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise port_failure(error, host, port, what, change) from error


def port_failure(error: OSError, host: str, port: int, what: str, change: str) -> Exception:
    """The error for a failed bind."""
    address = join_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return PortTaken(
            f"{what} cannot listen at {address}: another process uses the port; stop it (find it with "
            f"`ss -ltnp 'sport = :{port}'`), or choose another port with {change}"
        )
    if error.errno == errno.EACCES:
        return LocalRefused(
            f"{what} may not listen at {address}: ports below 1024 need privileges; choose another port with {change}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return LocalRefused(f"{what} cannot listen at {address}: this machine has no address {host}")
    return LocalRefused(f"{what} cannot listen at {address}: {error.strerror or error}")


def require_directory(path: Path, change: str) -> None:
    """Create a directory and check that it can be written. Raises LocalRefused."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalRefused(
            f"the data directory {path} cannot be created ({error.strerror}); choose another with {change}"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise LocalRefused(
            f"this user cannot write to the data directory {path}; check its owner, or choose another with {change}"
        )
