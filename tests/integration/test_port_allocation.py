"""Ports for the servers of tests, as processes of one machine draw them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.host_port import split_address
from aerobee.testing import LocalCluster, ports
from aerobee.testing.ports import free_block, free_broker_port, free_ports

DRAW = "from aerobee.testing.ports import free_block; print(*(free_block(3) for _ in range(50)))"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A counter of this test alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def counter(directory: Path) -> Path:
    (found,) = directory.glob("aerobee-test-ports-*")
    return found


def test_concurrent_processes_draw_different_ports() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", DRAW], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    drawn = [int(text) for process in processes for text in process.communicate(timeout=120)[0].split()]
    assert all(process.returncode == 0 for process in processes)
    taken = [port for first in drawn for port in range(first, first + 3)]
    assert len(set(taken)) == len(taken) == 600


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first, draw = free_block(4), ports._draw
    draws = iter([first, first])
    monkeypatch.setattr(ports, "_draw", lambda count, usable: next(draws, None) or draw(count, usable))
    with socket.create_server(("127.0.0.1", first + 3)):
        assert free_block(3) == first
        assert free_block(4) != first


def test_the_counter_begins_again_at_the_end_of_the_range(temporary: Path) -> None:
    free_block(1)
    usable = ports.usable_ports(ports._ephemeral())
    counter(temporary).write_text(str(usable.stop - 2))
    block = free_block(4)
    assert usable.start <= block < usable.stop - 4


def test_adjacent_ports_of_a_broker_are_free() -> None:
    port = free_broker_port()
    for each in (port - 2, port, port + 1):
        socket.create_server(("127.0.0.1", each)).close()
    assert len(set(free_ports(3))) == 3


@pytest.mark.parametrize("content", [b"x" * 8, b"1" * 40])
def test_a_file_that_is_no_counter_stays_unchanged(temporary: Path, content: bytes) -> None:
    free_block(1)
    file = counter(temporary)
    file.write_bytes(content)
    assert free_block(2) in ports.usable_ports(ports._ephemeral())
    assert file.read_bytes() == content


def test_a_link_leads_the_counter_into_no_other_file(temporary: Path) -> None:
    free_block(1)
    file = counter(temporary)
    other = temporary / "other"
    other.write_bytes(b"21000")
    file.unlink()
    file.symlink_to(other)
    free_block(1)
    assert other.read_bytes() == b"21000"


async def test_servers_of_a_cluster_have_no_ports_of_outgoing_connections() -> None:
    """They are started again at the same ports."""
    async with LocalCluster(brokers=2, nameservers=2) as cluster:
        addresses = (*cluster.nameserver_addresses, *cluster.broker_addresses)
        found = {split_address(address)[1] for address in addresses}
        assert len(found) == 4
        assert found <= set(ports.usable_ports(ports._ephemeral()))
        await cluster.kill_broker(1)
        await cluster.start_broker(1)
        assert cluster.broker(1).address == addresses[3]
        assert cluster.broker(1).identity.ha_address == f"127.0.0.1:{split_address(addresses[3])[1] + 1}"
