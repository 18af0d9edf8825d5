"""What a plain start loads: parts that are not configured, and unused packages, stay on the disk.

Each module is some 0.6 ms of CPU and 20 KiB of memory in every process. Servers of this kind are started in tests,
containers and by supervisors, many times a day, so the list below is held by a test and not by a hope.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_broker_port, free_port

ROOT = Path(__file__).resolve().parents[2]
# What a broker without replicas, access control, metrics or controllers has no use for.
NOT_IN_A_PLAIN_BROKER = (
    "aerobee.access.calls",
    "aerobee.access.keepers",
    "aerobee.access.plain_acl",
    "aerobee.access.rocks_table",
    "aerobee.access.needs",
    "aerobee.access.users",
    "aerobee.broker.acting.acting_master",
    "aerobee.broker.exporter",
    "aerobee.broker.grpc",
    "aerobee.broker.replication.auto_switch_mode",
    "aerobee.broker.replication.classic_follower",
    "aerobee.broker.replication.controller_agent",
    "aerobee.broker.replication.controller_wiring",
    "aerobee.broker.replication.classic_slave_connection",
    "aerobee.broker.replication.slave_connection",
    "aerobee.client",
    "aerobee.console",
    "aerobee.grpc",
    "aerobee.ha.controller.state",
    "aerobee.ha.controller.config",
    "aerobee.ha.controller.controller",
    "aerobee.ha.stream.transfer_header",
    "aerobee.ha.raft.node",
    "aerobee.monitoring",
    "aerobee.nameserver.route_table",
    "aerobee.nameserver.server",
    "aerobee.simulation",
    "aerobee.spark",
    "aiohttp",
    "cryptography",
    "email",
    "google.protobuf",
    "h2",
    "hashlib",
    "http.client",
    "importlib.metadata",
    "msgpack",
    "prometheus_client",
    "pyarrow",
    "rich",
    "rocksdict",
    "unittest",
    "urllib.request",
    "yaml",
    "zipfile",
)
# `aerobee up` has a NameServer, too, which may show its health, asks it once who has registered, and prints in colour.
OF_UP_ALONE = (
    "aerobee.client",
    "aerobee.ha.controller.config",
    "aerobee.monitoring",
    "aerobee.nameserver",
    "rich",
)
NOT_IN_UP = (
    "aerobee.client.admin",
    "aerobee.client.consumer",
    "aerobee.client.producer",
    "aerobee.client.session.session",
    *(name for name in NOT_IN_A_PLAIN_BROKER if not name.startswith(OF_UP_ALONE)),
)
# Starts a broker as the command does, and writes what is loaded when it serves.
PLAIN_BROKER = """
import asyncio, json, sys
from aerobee.ops.commands import tree as commands
from aerobee.ops.commands.tree import _load
_load("broker")
from aerobee.config import Setting
from aerobee.ops.servers.broker import start_broker
from aerobee.ops.settings.settings import broker_settings

async def main():
    given = {"storePathRootDir": sys.argv[1], "bindAddress": "127.0.0.1", "listenPort": "0", **json.loads(sys.argv[2])}
    broker = start_broker(broker_settings(flags={key: Setting(value, "test") for key, value in given.items()}, environ={}))
    await broker.start()
    print(json.dumps(sorted(sys.modules)))
    await broker.stop()

asyncio.run(main())
"""
# The command itself; what is loaded is written when it says that it is ready.
UP = """
import json, sys
from aerobee.ops.commands import tree as commands
from aerobee.ops.commands.tree import _load
_load("up")
from aerobee.ops.servers import up

def ready(*arguments):
    print(json.dumps(sorted(sys.modules)), flush=True)
    raise SystemExit(0)

up._say_ready = ready
sys.exit(commands.run_cli(["up", "--no-grpc", "--data", sys.argv[1], "--port", sys.argv[2], "--nameserver-port", sys.argv[3]]))
"""


def loaded(program: str, *arguments: str) -> set[str]:
    """The modules of a separate process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines, done.stderr
    return set(json.loads(lines[0]))


def found_of(names: tuple[str, ...], modules: set[str]) -> list[str]:
    return sorted(
        each for each in modules if each.startswith(tuple(f"{name}." for name in names)) or each in names
    )


def test_a_plain_broker_loads_nothing_that_is_not_configured(tmp_path: Path) -> None:
    modules = loaded(PLAIN_BROKER, str(tmp_path / "store"), "{}")
    assert "aerobee.store.message_store" in modules
    assert found_of(NOT_IN_A_PLAIN_BROKER, modules) == []


def test_what_is_configured_is_loaded(tmp_path: Path) -> None:
    """That the list names what exists: a module that was moved would never be found again."""
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": "127.0.0.1",
        "metricsPromExporterPort": "0",
    }
    modules = loaded(PLAIN_BROKER, str(tmp_path / "store"), json.dumps(settings))
    assert found_of(("aerobee.broker.exporter", "aerobee.monitoring"), modules)
    for name in NOT_IN_A_PLAIN_BROKER:
        if name.startswith("aerobee."):
            path = ROOT.joinpath(*name.split("."))
            assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_with_native_code_the_python_backend_is_not_loaded(tmp_path: Path) -> None:
    pytest.importorskip("aerobee_native")
    modules = loaded(PLAIN_BROKER, str(tmp_path / "store"), "{}")
    assert (
        found_of(("aerobee.broker.fastpath.python_backend", "aerobee.broker.fastpath.delivery"), modules)
        == []
    )


def test_a_broker_with_grpc_loads_the_native_core_alone(tmp_path: Path) -> None:
    """Python's HTTP/2 core takes 2 MiB, and importlib.metadata one."""
    pytest.importorskip("aerobee_native")
    pytest.importorskip("google.protobuf")
    settings = {"grpcServerPort": str(free_broker_port())}
    modules = loaded(PLAIN_BROKER, str(tmp_path / "store"), json.dumps(settings))
    assert "aerobee.broker.grpc.session" in modules
    unused = (
        "aerobee.grpc.http2_connection",
        "aerobee.grpc.http2_engine",
        "aerobee.grpc.huffman",
        "email",
        "h2",
    )
    assert found_of((*unused, "importlib.metadata"), modules) == []


def test_up_loads_no_more_of_a_client_than_it_asks(tmp_path: Path) -> None:
    port, nameserver_port = free_broker_port(), free_port()
    modules = loaded(UP, str(tmp_path / "data"), str(port), str(nameserver_port))
    assert "aerobee.nameserver.server" in modules
    assert found_of(NOT_IN_UP, modules) == []
