"""Every command that talks to a cluster connects as the shared options say, and takes them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import aerobee.ops
from aerobee.ops.commands import tree as commands
from aerobee.ops.options.shared_options import KEPT
from tests.sources import nodes_of

CLIENTS = {"Admin", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer", "TransactionProducer"}
# up.py looks at its own NameServer, in plain.
OWN = {"clients.py", "up.py"}
MODULES = sorted(path for path in Path(aerobee.ops.__file__).parent.rglob("*.py") if path.name not in OWN)


def test_no_command_makes_a_client_of_its_own() -> None:
    assert len(MODULES) > 50
    made = [
        f"{path.name}:{node.lineno}: {node.func.id}"
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLIENTS
    ]
    assert not made, "ops/options/clients.py knows how to connect"


def leaves(command: Any, name: str) -> list[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        return [(name, command)]
    return [leaf for each, sub in below.items() for leaf in leaves(sub, f"{name} {each}")]


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_takes_the_shared_options(name: str) -> None:
    for path, command in leaves(commands._load(name), name):
        names = {parameter.name for parameter in command.params}
        assert "debug" in names, path
        if "nameserver" in names and path not in KEPT:
            assert {"context", "tls", "ca_file", "cert_file", "key_file"} <= names, path
