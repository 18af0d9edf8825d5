"""Ports of a cluster in one container: none twice, and the command names them."""

from __future__ import annotations

import pytest

from aerobee.ops.servers.up import ports_of_up
from aerobee.testing.container_ports import ContainerPorts


@pytest.mark.parametrize("brokers", [1, 2, 5])
@pytest.mark.parametrize("replicas", [1, 3])
def test_the_ports_are_those_of_up_and_none_is_used_twice(brokers: int, replicas: int) -> None:
    count = brokers * replicas
    ports = ContainerPorts.at(
        20_000, broker_count=count, has_controllers=True, has_grpc=True, has_console=True
    )
    assert len(set(ports.published)) == len(ports.published)
    assert max(ports.published) < 20_000 + ContainerPorts.size(count)
    of_up = ports_of_up(ports.brokers[0], count, ports.nameserver, ports.controllers[0])
    assert set(ports.published) == of_up | set(ports.grpc) | {ports.console}


def test_the_command_has_what_was_asked_for() -> None:
    ports = ContainerPorts.at(20_000, broker_count=2, has_controllers=True, has_grpc=True, has_console=False)
    words = ports.up_command(1, 2, advertise="127.0.0.1", settings={"maxMessageSize": "1024"})
    assert ports.console == 0
    assert words[:1] + words[-2:] == ["up", "--set", "maxMessageSize=1024"]
    for option, value in (
        ("--advertise", "127.0.0.1"),
        ("--replicas", "2"),
        ("--nameserver-port", "20000"),
        ("--controller-port", "20001"),
        ("--grpc-port", "20005"),
        ("--port", str(ports.brokers[0])),
    ):
        assert words[words.index(option) + 1] == value


def test_a_plain_cluster_has_neither_controllers_nor_grpc() -> None:
    ports = ContainerPorts.at(
        20_000, broker_count=1, has_controllers=False, has_grpc=False, has_console=False
    )
    words = ports.up_command(1, 1, advertise="a.example", settings={})
    assert "--no-grpc" in words
    assert "--controller-port" not in words
    assert len(ports.published) == 4
