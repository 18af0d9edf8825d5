"""One allocator chooses the ports of all tests: aerobee/testing/ports.py, through tests/ports.py."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from aerobee.testing.ports import FEWEST, WANTED, usable_ports
from tests.sources import nodes_of

ROOT = Path(__file__).resolve().parents[2]
ALLOCATOR = {"aerobee/testing/ports.py", "tests/ports.py"}
# Files that bind port 0 and keep the socket open for as long as they use its number.
KEEP_THE_PORT = {"tests/integration/test_remoting.py", "tests/unit/ops/servers/test_up_grpc.py"}


def _sources() -> list[Path]:
    found = [
        path
        for top in ("tests", "bench", "scripts", "aerobee")
        for path in sorted((ROOT / top).rglob("*.py"))
    ]
    scripts = [
        path
        for path in (ROOT / "scripts").iterdir()
        if path.is_file() and b"python" in path.read_bytes()[:40]
    ]
    return found + scripts


def _is_bind_to_any(node: ast.AST) -> bool:
    """`socket.bind((host, 0))`: the kernel chooses a port that it may give to a connection next."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "bind"):
        return False
    address = node.args[0] if node.args else None
    port = address.elts[-1] if isinstance(address, ast.Tuple) else None
    return isinstance(port, ast.Constant) and port.value == 0


def test_no_second_allocator_of_ports_exists() -> None:
    defined, bound = set(), set()
    for path in _sources():
        name = path.relative_to(ROOT).as_posix()
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("free_port"):
                defined.add(name)
            if _is_bind_to_any(node):
                bound.add(name)
    assert defined == ALLOCATOR, "take ports from tests/ports.py"
    assert bound == KEEP_THE_PORT, "take ports that are bound later from tests/ports.py"


@pytest.mark.parametrize(
    ("ephemeral", "usable"),
    [
        (range(32_768, 61_000), WANTED),  # Linux
        (range(49_152, 65_536), WANTED),  # macOS, Windows
        (range(25_000, 61_000), range(20_000, 25_000)),
        (range(1_024, 25_000), range(25_000, 32_000)),
        (range(15_000, 65_000), range(1_024, 15_000)),
        (range(1_024, 60_000), range(60_000, 65_536)),
        (range(1_024, 65_536), WANTED),  # none is left: a port that is bound once is better than no port
    ],
)
def test_ports_avoid_those_of_outgoing_connections(ephemeral: range, usable: range) -> None:
    assert usable_ports(ephemeral) == usable
    assert len(usable) >= FEWEST
