"""A member is its id and its data directory: one whose disk was replaced takes no part until it is removed and added again."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from aerobee.errors import MalformedFrame, WireError
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Entry, EntryKind, HardState, Membership, Snapshot, first_entry
from aerobee.ha.raft.log import Recovered
from aerobee.ha.raft.membership_change import is_one_step, with_identities
from aerobee.ha.raft.messages import AppendRequest, Message, SnapshotChunk, VoteReply, VoteRequest
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.storage import RaftFiles
from aerobee.simulation.simulated_disk import SimulatedDisk
from tests.simulation.raft_by_hand import LONG_MS, ByHand
from tests.unit.ha.raft_group import CONFIG, beat, led


class NamedGroup(ByHand):
    """Its directories have identities; what a node does not believe is dropped, as the service does."""

    names_directories = True

    def arrive(self, message: Message) -> None:
        with contextlib.suppress(WireError):
            super().arrive(message)


def named_group() -> ByHand:
    """Three voters whose leader n0 has noted their directories."""
    group = led(NamedGroup(config=RaftConfig(**CONFIG)))
    for _ in range(3):
        beat(group, "n0")
    return group


def with_lost_disk(group: ByHand, name: str) -> None:
    group.hosts[name].stop(power_loss=True)
    group.hosts[name].replace_disk()
    group.restart(name)


def test_the_leader_notes_the_directories_of_all_members() -> None:
    group = named_group()
    for host in group.hosts.values():
        known = dict(host.node.log.membership.identities)
        assert known == {name: other.node.identity for name, other in group.hosts.items()}
        assert host.node.commit_index >= host.node.log.membership_index


def test_a_directory_keeps_its_identity_over_restarts() -> None:
    group = named_group()
    before = {name: host.node.identity for name, host in group.hosts.items()}
    group.lose_power(*group.hosts)
    group.restart(*group.hosts)
    assert {name: host.node.identity for name, host in group.hosts.items()} == before
    led(group)
    group.put("n0")


def test_a_replaced_disk_gives_no_vote_and_no_acknowledgement() -> None:
    group = named_group()
    group.lose_power("n2")
    with_lost_disk(group, "n1")
    group.put("n0")
    committed = group.hosts["n0"].node.commit_index
    for _ in range(3):
        beat(group, "n0")
    assert group.hosts["n0"].node.commit_index == committed, "no majority has it"
    assert group.hosts["n1"].node.is_unrecognized
    group.elapse(LONG_MS)
    group.tick("n0")
    group.settle()
    for _ in range(5):
        group.elapse(LONG_MS)
        group.tick("n0", "n1")
        group.settle()
        assert not any(group.hosts[name].node.is_leader for name in ("n0", "n1"))


def test_a_replaced_disk_elects_no_leader_without_the_commits() -> None:
    """n2 has missed an entry that n0 and n1 committed; n1 comes back empty, and would vote for n2."""
    group = named_group()
    group.lose_power("n2")
    group.put("n0")
    group.settle()
    beat(group, "n0")
    group.lose_power("n0")
    with_lost_disk(group, "n1")
    group.restart("n2")
    for _ in range(5):
        group.elapse(LONG_MS)
        group.tick("n2", "n1")
        group.settle()
    assert not group.hosts["n2"].node.is_leader
    assert not group.hosts["n1"].node.is_leader


def test_one_that_was_removed_and_added_takes_part_with_its_new_disk() -> None:
    group = named_group()
    with_lost_disk(group, "n1")
    beat(group, "n0")
    leader = group.hosts["n0"].node
    assert group.hosts["n1"].node.is_unrecognized

    def step(change: Callable[[], object]) -> None:
        change()
        for _ in range(6):
            beat(group, "n0")

    step(lambda: leader.remove("n1", group.hosts["n0"].local_ms()))
    step(lambda: leader.add_learner("n1", group.hosts["n0"].local_ms()))
    assert not group.hosts["n1"].node.is_unrecognized
    step(lambda: leader.promote("n1", group.hosts["n0"].local_ms()))
    members = leader.log.membership
    assert sorted(members.voters) == ["n0", "n1", "n2"]
    assert members.identity_of("n1") == group.hosts["n1"].node.identity
    group.lose_power("n2")
    group.put("n0")
    committed = leader.commit_index
    beat(group, "n0")
    assert leader.commit_index > committed or leader.commit_index == leader.log.last_index


def node(members: Membership, *, name: str = "n0", identity: str = "a") -> RaftNode:
    change = Entry(2, 1, EntryKind.MEMBERSHIP, members.encode())
    entries = (first_entry(Membership(members.voters)), change)
    recovered = Recovered(HardState(1), None, entries, identity)
    return RaftNode(name, RaftConfig(**CONFIG), recovered, now_ms=0, random=lambda: 0.5)


NAMED = Membership(("n0", "n1", "n2"), (), (("n0", "a"), ("n1", "b"), ("n2", "c")))


def test_one_frame_does_not_revoke_a_known_member() -> None:
    known = node(NAMED)
    with pytest.raises(WireError, match="means another data directory"):
        known.receive(
            VoteReply(
                source="n1",
                target="n0",
                term=1,
                identity="b",
                target_identity="x",
                is_granted=True,
                is_pre_vote=False,
            ),
            1,
        )
    assert not known.is_unrecognized


@pytest.mark.parametrize("identity", ["", "x"])
def test_a_message_of_another_directory_changes_nothing(identity: str) -> None:
    voter = node(NAMED)
    request = VoteRequest(
        source="n1",
        target="n0",
        term=9,
        identity=identity,
        last_index=50,
        last_term=8,
        is_pre_vote=False,
        is_ordered=True,
    )
    with pytest.raises(WireError, match="remove it and add it again"):
        voter.receive(request, 1)
    assert voter.term == 1


def test_members_change_one_step_at_a_time() -> None:
    follower = node(NAMED)
    evil = Entry(3, 5, EntryKind.MEMBERSHIP, Membership(("evil",)).encode())
    with pytest.raises(WireError, match="a change is one member or one vote"):
        follower.receive(
            AppendRequest(
                source="n1",
                target="n0",
                term=5,
                identity="b",
                prev_index=2,
                prev_term=1,
                commit_index=3,
                round=1,
                entries=(evil,),
            ),
            1,
        )
    assert follower.log.membership == NAMED


def test_steps_of_a_membership() -> None:
    three = Membership(("a", "b", "c"))
    assert is_one_step(Membership(), three)
    assert is_one_step(three, Membership(("a", "b", "c"), ("d",)))
    assert is_one_step(Membership(("a", "b", "c"), ("d",)), Membership(("a", "b", "c", "d")))
    assert is_one_step(three, Membership(("a", "b")))
    assert is_one_step(three, with_identities(three, {"a": "1", "x": "2"}))
    assert not is_one_step(three, Membership(("a",)))
    assert not is_one_step(three, Membership(("a", "b", "d")))
    assert not is_one_step(
        Membership(("a", "b"), (), (("a", "1"),)), Membership(("a", "b"), (), (("a", "2"),))
    )


def test_a_snapshot_brings_the_identities() -> None:
    behind = node(Membership(("n0", "n1", "n2")))
    behind.receive(
        SnapshotChunk(
            source="n1",
            target="n0",
            term=3,
            identity="b",
            index=9,
            snapshot_term=2,
            voters=NAMED.voters,
            learners=(),
            identities=NAMED.identities,
            offset=0,
            total_bytes=0,
            crc=0,
            round=1,
            data=b"",
        ),
        1,
    )
    assert behind.log.membership == NAMED


def files(disk: SimulatedDisk, identity: str) -> RaftFiles:
    return RaftFiles("/raft", disk=disk, new_identity=lambda: identity)


def test_identities_are_durable_with_vote_and_snapshot() -> None:
    disk = SimulatedDisk(random.Random(1))
    first = files(disk, "one")
    assert first.open().identity == "one"
    first.initialize(Membership(("n0", "n1", "n2")))
    first.save_hard_state(HardState(4, "n1"))
    first.append([Entry(2, 2, EntryKind.COMMAND, b"x")])
    first.save_snapshot(Snapshot(2, 2, NAMED, b"state"))
    first.close()
    disk.power_loss()
    recovered = files(disk, "two").open()
    assert recovered.identity == "one"
    assert recovered.snapshot == Snapshot(2, 2, NAMED, b"state")
    with pytest.raises(MalformedFrame):
        Membership(("a",), (), (("b", "1"),))
