"""A group of Raft nodes that tests move step by step, and one node alone."""

from __future__ import annotations

from typing import Any

from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import HardState, Membership, first_entry
from aerobee.ha.raft.log import Recovered
from aerobee.ha.raft.node import RaftNode
from tests.simulation.raft_by_hand import ByHand
from tests.simulation.raft_world import ELECTION_TIMEOUT_MS

CONFIG: dict[str, Any] = {
    "election_timeout_ms": ELECTION_TIMEOUT_MS,
    "heartbeat_interval_ms": 50,
    "clock_drift_ratio_max": 0.1,
    "entry_bytes_max": 200,
    "snapshot_interval_entries": 1000,
}


def led(group: ByHand, name: str = "n0") -> ByHand:
    group.elect(name)
    group.settle()
    beat(group, name)
    return group


def beat(group: ByHand, *names: str) -> None:
    group.elapse(55)
    group.tick(*names)
    group.settle()


def beat_without_answers(group: ByHand) -> None:
    group.elapse(55)
    group.tick("n0")


def lone_node(config: RaftConfig, *, voters: tuple[str, ...] = ("a",)) -> RaftNode:
    recovered = Recovered(HardState(1), None, (first_entry(Membership(voters)),))
    return RaftNode("a", config, recovered, now_ms=0, random=lambda: 0.5)
