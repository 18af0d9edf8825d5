"""A controller whose log holds what only a newer version can read ends; no request of a client can put that into the log."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.clock import ManualClock
from aerobee.errors import NewerVersion
from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.commands import ApplyBrokerId, Command, RegisterBroker, encode_command
from aerobee.ha.controller.config import ControllerConfig, LiveControllerConfig
from aerobee.ha.controller.masters import Masters
from aerobee.ha.controller.state import ControllerState, Outcome
from aerobee.ha.packed import pack
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Membership
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.raft_service import RaftService
from aerobee.ha.raft.replica import Replica, StateMachine
from aerobee.ha.raft.storage import RaftFiles
from aerobee.simulation.simulated_disk import SimulatedDisk
from tests.waiting import wait_until

KNOWN = ApplyBrokerId(broker_name="a", cluster_name="c", broker_id=1, check_code="b:1;5")
NEXT = ApplyBrokerId(broker_name="a", cluster_name="c", broker_id=2, check_code="b:2;5")
UNKNOWN = pack((911_999, "a"))
MORE_FIELDS = pack((ApplyBrokerId.CODE, "a", "c", 1, "b:1;5", "a field of a newer version"))


class NewerState:
    """A newer version: it carries out every command, and its snapshots are of another version."""

    def apply(self, index: int, data: bytes) -> object:
        return None

    def snapshot(self) -> bytes:
        return pack((2, []))

    def restore(self, data: bytes) -> None:
        """It has nothing that could differ."""


def member(disk: SimulatedDisk, machine: StateMachine, interval: int = 1_000) -> Replica:
    """The only voter, started from what the disk holds, leading and up to date."""
    files = RaftFiles("/controller", disk=disk)
    recovered = files.open()
    if recovered.is_new:
        recovered = files.initialize(Membership(("n0",)))
    config = RaftConfig(snapshot_interval_entries=interval)
    node = RaftNode("n0", config, recovered, now_ms=0, random=lambda: 0.5)
    replica = Replica(node, files, machine, send=print)
    replica.tick(10_000)
    return replica


@pytest.mark.parametrize("command", [UNKNOWN, MORE_FIELDS], ids=["code", "fields"])
def test_a_command_of_a_newer_version_ends_the_member(command: bytes) -> None:
    disk = SimulatedDisk(random.Random(1))
    newer = member(disk, NewerState())
    for data in (encode_command(KNOWN), command, encode_command(NEXT)):
        newer.propose(data, lambda *done: None, 10_000)
    disk.power_loss()
    state = ControllerState()
    with pytest.raises(NewerVersion, match=r"newer version .*upgrade this controller"):
        member(disk, state)
    assert list(state.groups["a"].replicas) == [1], "what follows the unknown command is not applied"


def test_no_step_follows_a_command_of_a_newer_version() -> None:
    replica = member(SimulatedDisk(random.Random(1)), ControllerState())
    applied = replica.applied_index
    with pytest.raises(NewerVersion):
        replica.propose(UNKNOWN, lambda *done: None, 10_000)
    for again in range(2):
        with pytest.raises(NewerVersion):
            replica.tick(20_000 + again)
    assert replica.applied_index == applied


def test_a_snapshot_of_a_newer_version_ends_the_member() -> None:
    disk = SimulatedDisk(random.Random(1))
    newer = member(disk, NewerState(), interval=2)
    for _ in range(4):
        newer.propose(UNKNOWN, lambda *done: None, 10_000)
    assert newer.node.log.snapshot_index > 0
    disk.power_loss()
    with pytest.raises(NewerVersion, match=r"snapshot .*upgrade this controller"):
        member(disk, ControllerState())


async def test_the_service_reports_the_newer_version_and_ends() -> None:
    failures: list[Exception] = []
    clock = ManualClock()

    async def run(work: Any) -> Any:
        return work()

    service = RaftService(
        node_id="n0",
        members=("n0",),
        config=RaftConfig(),
        directory="/controller",
        disk=SimulatedDisk(random.Random(1)),
        machine=ControllerState(),
        clock=clock,
        random=lambda: 0.5,
        send=lambda message: None,
        on_status=lambda status: None,
        on_failed=failures.append,
        runner=run,
    )
    await service.start()

    def serves() -> bool:
        clock.advance(1.0)
        return service.status.is_serving

    await wait_until(serves)
    with pytest.raises(NewerVersion):
        await service.propose(UNKNOWN)
    await wait_until(lambda: bool(failures))
    assert isinstance(failures[0], NewerVersion)
    assert not service.status.is_leader
    await service.stop()


@pytest.mark.parametrize(
    "command",
    [
        RegisterBroker(broker_name="n" * 256, cluster_name="c", broker_id=1, address="b:1"),
        RegisterBroker(broker_name="", cluster_name="c", broker_id=1, address="b:1"),
        ApplyBrokerId(broker_name="a", cluster_name="c", broker_id=-1, check_code="x"),
        ApplyBrokerId(broker_name="a", cluster_name="c", broker_id=1, check_code="x" * 1_025),
    ],
)
async def test_what_no_controller_can_read_is_not_proposed(command: Command) -> None:
    state, proposed = ControllerState(), []

    async def propose(data: bytes) -> Outcome:
        proposed.append(data)
        return state.apply(len(proposed), data)

    masters = Masters(
        config=LiveControllerConfig(
            ControllerConfig(
                controller_d_leger_group="q",
                controller_d_leger_peers="n0-127.0.0.1:1",
                controller_d_leger_self_id="n0",
            )
        ),
        state=state,
        raft=cast(Any, SimpleNamespace(propose=propose)),
        client=cast(Any, None),
        clock=ManualClock(),
    )
    assert (await masters.propose(command)).code is ControllerCode.INVALID_REQUEST
    assert not proposed
    assert (await masters.propose(KNOWN)).code is ControllerCode.SUCCESS
