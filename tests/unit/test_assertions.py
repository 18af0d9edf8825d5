"""What must hold is asserted where it would break: each test breaks it, and the assertion says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aerobee.broker.replication.replica_acks import ReplicaAcks
from aerobee.clock import ManualClock
from tests.simulation.raft_by_hand import ByHand


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
