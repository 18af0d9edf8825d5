"""A cluster that accepts TLS only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.integration.certificates import Identity, identity
from tests.ports import free_broker_port, free_port


@dataclass
class Secured:
    """Servers that take connections of known clients only, and who may connect."""

    nameserver: str  # of a whole cluster: it takes both kinds of connections, its broker TLS only
    alone: str  # a NameServer that takes TLS only
    authority: Identity
    client: Identity

    def options(self) -> list[str]:
        """What a command needs."""
        files = {"ca": self.authority.cert_path, "cert": self.client.cert_path, "key": self.client.key_path}
        return [part for name, path in files.items() for part in (f"--tls-{name}-file", str(path))]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("certificates")
    authority = identity(directory, "authority")
    server, client = (identity(directory, name, authority) for name in ("server", "client"))
    keys = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.cert_path,
        "tls.server.keyPath": server.key_path,
        "tls.server.trustCertPath": authority.cert_path,
        "tls.server.authClient": "true",
        "tls.server.need.client.auth": "require",
    }
    settings = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    port, nameserver, alone = free_broker_port(), free_port(), free_port()
    ports = ("--port", str(port), "--nameserver-port", str(nameserver), "--grpc-port", str(free_port()))
    with (
        started("up", "--ephemeral", "--json", *ports, *settings),
        started("nameserver", "--json", "--port", str(alone), *settings),
    ):
        yield Secured(f"127.0.0.1:{nameserver}", f"127.0.0.1:{alone}", authority, client)


@contextmanager
def started(*arguments: str) -> Iterator[None]:
    """A server in a separate process, ready."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "aerobee.ops", *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)
