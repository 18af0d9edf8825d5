"""The gRPC ports that `aerobee up` chooses."""

from __future__ import annotations

import socket

import pytest

from aerobee.errors import UsageError
from aerobee.ops.servers import up_grpc
from aerobee.ops.servers.up_grpc import NOT_INSTALLED, grpc_ports
from aerobee.ops.terminal.failure import PortTaken
from tests.ports import free_port

HOST = "127.0.0.1"


def test_each_broker_gets_the_next_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_grpc, "_is_free", lambda host, port: port != 8_082)
    assert grpc_ports(None, host=HOST, count=3, taken=frozenset({8_083})) == (8_081, 8_084, 8_085)


def test_too_few_free_ports_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_grpc, "_is_free", lambda host, port: False)
    assert grpc_ports(None, host=HOST, count=1, taken=frozenset()) == (
        "not served: too few of the ports 8081 to 8180 are free; choose others with --grpc-port"
    )


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_grpc, "grpc_is_installed", lambda: False)
    assert grpc_ports(9_000, host=HOST, count=1, taken=frozenset()) == NOT_INSTALLED


def test_a_chosen_port_in_use_is_refused() -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        with pytest.raises(PortTaken, match="--grpc-port"):
            grpc_ports(holder.getsockname()[1], host=HOST, count=1, taken=frozenset())


def test_a_chosen_port_of_another_server_is_refused() -> None:
    port = free_port()
    with pytest.raises(UsageError, match=f"port {port} is that of another server"):
        grpc_ports(port, host=HOST, count=1, taken=frozenset({port}))
    with pytest.raises(UsageError, match="is too high for 2 brokers"):
        grpc_ports(65_535, host=HOST, count=2, taken=frozenset())
