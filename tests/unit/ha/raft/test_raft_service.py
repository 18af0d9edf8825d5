"""One member in the event loop: simultaneous proposals share a sync, and no step keeps messages back for long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aerobee.clock import ManualClock
from aerobee.errors import QuorumBusy
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Entry
from aerobee.ha.raft.inbox import CALLS_MAX, MESSAGES_MAX
from aerobee.ha.raft.messages import VoteReply
from aerobee.ha.raft.raft_service import STEP_INPUTS_MAX, STEP_MAX_S, RaftService
from aerobee.ha.raft.replica import Replica
from aerobee.ha.raft.storage import RaftFiles
from aerobee.simulation.simulated_disk import SimulatedDisk


class Counted:
    """A state machine whose result is how many commands it has carried out."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, index: int, data: bytes) -> object:
        self.commands.append(data)
        return len(self.commands)

    def snapshot(self) -> bytes:
        return b""

    def restore(self, data: bytes) -> None:
        raise AssertionError("there is no snapshot to restore")


class Member:
    """A service that is a quorum by itself, on a clock and a separate disk. `syncs`: entries of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sync_s: float = 0.0) -> None:
        self.clock = ManualClock()
        self.machine = Counted()
        self.syncs: list[int] = []
        self.steps = 0
        append = RaftFiles.append

        def counted(files: RaftFiles, entries: Sequence[Entry]) -> None:
            append(files, entries)
            self.syncs.append(len(entries))
            self.clock.advance(sync_s)

        monkeypatch.setattr(RaftFiles, "append", counted)
        self.service = RaftService(
            node_id="n0",
            members=("n0",),
            config=RaftConfig(),
            directory="/controller",
            disk=SimulatedDisk(random.Random(1)),
            machine=self.machine,
            clock=self.clock,
            random=lambda: 0.5,
            send=lambda message: None,
            on_status=lambda status: None,
            on_failed=lambda error: None,
            runner=self._run,
        )

    @property
    def _has_noted_its_directory(self) -> bool:
        node = self.service._replica.node  # type: ignore[union-attr]
        return bool(node.log.membership.identities) and node.log.membership_index <= node.commit_index

    async def _run(self, work: Callable[[], Any]) -> Any:
        self.steps += 1
        return work()

    async def start(self) -> None:
        await self.service.start()
        while not (self.service.status.is_serving and self._has_noted_its_directory):
            self.clock.advance(1.0)
            await asyncio.sleep(0)
        self.syncs.clear()
        self.steps = 0


async def test_proposals_that_come_at_once_share_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(monkeypatch)
    await member.start()
    results = await asyncio.gather(*(member.service.propose(b"%d" % each) for each in range(100)))
    assert results == list(range(1, 101))
    assert member.machine.commands == [b"%d" % each for each in range(100)]
    assert member.syncs == [100]
    await member.service.stop()


async def test_a_step_on_a_slow_disk_ends_and_the_rest_is_taken_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Member(monkeypatch, sync_s=STEP_MAX_S)
    await member.start()

    def one_sync_each(replica: Any, now_ms: float) -> None:
        replica.propose(b"x", lambda *done: None, now_ms)

    for _ in range(10):
        member.service._inbox.add_call(one_sync_each)
    member.service._wake.set()
    while len(member.machine.commands) < 10:  # noqa: ASYNC110  the steps make it true
        await asyncio.sleep(0)
    assert member.steps >= 5  # two syncs a step, for the first one may just fit
    await member.service.stop()


REPLY = VoteReply(source="n1", target="n0", term=1, is_pre_vote=True, is_granted=False)


async def test_messages_of_members_are_taken_when_calls_fill_the_inbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Member(monkeypatch)
    await member.start()
    taken_after: list[int] = []  # for each message: how many calls were carried out before it
    monkeypatch.setattr(
        Replica, "receive", lambda replica, message, now_ms: taken_after.append(len(member.machine.commands))
    )
    calls = [asyncio.ensure_future(member.service.propose(b"x")) for _ in range(CALLS_MAX)]
    await asyncio.sleep(0)  # all of them are in the inbox
    for _ in range(10):
        member.service.deliver(REPLY)
    with pytest.raises(QuorumBusy):
        await member.service.propose(b"x")
    assert await asyncio.gather(*calls) == list(range(1, CALLS_MAX + 1))
    assert len(taken_after) == 10
    assert max(taken_after) < STEP_INPUTS_MAX
    await member.service.stop()


async def test_calls_are_taken_when_messages_fill_the_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(monkeypatch)
    await member.start()
    received: list[int] = []  # for each message: how many calls were carried out before it
    monkeypatch.setattr(
        Replica, "receive", lambda replica, message, now_ms: received.append(len(member.machine.commands))
    )
    for _ in range(MESSAGES_MAX + 10):
        member.service.deliver(REPLY)
    assert len(member.service._inbox) == MESSAGES_MAX
    assert await member.service.propose(b"x") == 1
    assert received.count(0) < STEP_INPUTS_MAX
    await member.service.stop()
