"""What must hold is asserted where it would break: each test breaks it, and the assertion says so. And every test checks something:
it asserts, expects an error, waits for a condition, or calls a helper of the tests that does.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from aerobee.broker.replication.replica_acks import ReplicaAcks
from aerobee.clock import ManualClock
from tests.simulation.raft_by_hand import ByHand
from tests.sources import nodes, tree_of


def test_appends_wait_for_replicas_in_the_order_of_the_log() -> None:
    acks = ReplicaAcks(clock=ManualClock(), timeout_s=lambda: 3.0)
    acks.when(10, lambda _: None)
    with pytest.raises(AssertionError, match="in the order of the log"):
        acks.when(5, lambda _: None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"term": -1}, "the term fell"),
        ({"commit_index": 1_000}, "an entry that the log does not have is committed"),
    ],
)
def test_a_node_makes_nothing_durable_that_cannot_be(change: dict[str, int], says: str) -> None:
    world = ByHand()
    node = next(host.replica.node for host in world.hosts.values() if host.replica is not None)
    for name, value in change.items():
        setattr(node, name, value)
    with pytest.raises(AssertionError, match=says):
        node.take_effects(0.0)


def test_a_simulation_without_assertions_is_refused() -> None:
    code = "from aerobee.simulation.run import run_seed; run_seed(1)"
    run = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "UsageError: a simulation checks the code by its assertions" in run.stderr


# -- tests

TESTS = Path(__file__).resolve().parents[1]
WAITS = {"raises", "warns", "fail", "wait_until", "wait_for", "until"}  # what they wait for must come

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_called(function: Function) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def checks_itself(function: Function) -> bool:
    return bool(names_called(function) & WAITS) or any(
        isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function)
    )


def without_a_check(trees: Iterable[tuple[str, ast.Module]]) -> list[str]:
    """The tests from which no call, by its name, leads to a check."""
    tests: list[tuple[str, Function]] = []
    by_name: dict[str, list[Function]] = defaultdict(list)
    for path, tree in trees:
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                by_name[node.name].append(node)
                if node.name.startswith("test_") and Path(path).name.startswith("test_"):
                    tests.append((path, node))
    checking: dict[str, bool] = {}

    def checks(name: str) -> bool:
        if name not in checking:
            checking[name] = False  # while it is looked at: a helper that calls itself
            checking[name] = any(
                checks_itself(each) or any(map(checks, names_called(each) & by_name.keys()))
                for each in by_name[name]
            )
        return checking[name]

    return [
        f"{path}:{test.lineno} {test.name}"
        for path, test in tests
        if not checks_itself(test) and not any(map(checks, names_called(test) & by_name.keys()))
    ]


def test_every_test_checks_something() -> None:
    trees = ((str(path.relative_to(TESTS.parent)), tree_of(path)) for path in sorted(TESTS.rglob("*.py")))
    assert without_a_check(trees) == []


def test_a_test_without_a_check_is_found() -> None:
    source = (
        "def test_nothing():\n    send()\n\n"
        "def test_by_a_helper():\n    both()\n\n"
        "def both():\n    one()\n\n"
        "def one():\n    both()\n    assert True\n\n"
        "async def test_waits():\n    await wait_until(lambda: True)\n"
    )
    assert without_a_check([("tests/test_a.py", ast.parse(source))]) == ["tests/test_a.py:1 test_nothing"]
