"""RaftNode while it leads: reads, handing over, changes of members, snapshots for those that are far behind."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee.errors import (
    MembershipRefused,
    NotLeader,
    QuorumBusy,
    UsageError,
    WireError,
)
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Membership
from aerobee.ha.raft.messages import (
    AppendReply,
    ReadReply,
    SnapshotChunk,
    SnapshotReply,
    StandNow,
    VoteReply,
)
from aerobee.ha.raft.outgoing import ReadReady
from tests.simulation.raft_by_hand import LONG_MS, ByHand
from tests.simulation.raft_world import ELECTION_TIMEOUT_MS
from tests.unit.ha.raft_group import CONFIG, beat, beat_without_answers, led

# -- reads


def test_a_read_needs_a_lease_or_a_majority() -> None:
    group = led(ByHand())
    host = group.hosts["n0"]
    group.read(host)
    assert group.operations[-1].end == group.now
    group.elapse(180)  # the lease expired
    group.read(host)
    assert group.operations[-1].end == float("inf")
    group.deliver(lambda message: message.target == "n1")
    group.deliver(lambda message: message.source == "n1")
    assert group.operations[-1].end == group.now


def test_an_answer_to_a_round_before_the_read_does_not_count() -> None:
    group = led(ByHand())
    group.elapse(55)
    group.tick("n0")
    before = group.drop()
    group.elapse(140)
    group.read(group.hosts["n0"])
    new = group.drop()
    for message in before:
        group.arrive(message)
    group.deliver(lambda message: isinstance(message, AppendReply))
    assert group.operations[-1].end == float("inf")
    for message in new:
        group.arrive(message)
    group.settle()
    assert group.operations[-1].end == group.now


def test_a_new_leader_answers_reads_once_its_first_entry_is_committed() -> None:
    group = led(ByHand())
    group.put("n0")
    group.settle()
    group.lose_power("n0")
    group.elect("n1", among=("n1", "n2"), is_silent=True)
    group.read(group.hosts["n1"])
    assert group.operations[-1].end == float("inf")
    group.settle()
    assert group.operations[-1].end == group.now
    group.check_history()


def test_a_follower_asks_the_leader_and_waits_until_it_has_applied_that() -> None:
    group = led(ByHand())
    group.put("n0")
    group.drop(lambda message: message.target == "n1")
    group.settle()
    group.read(group.hosts["n1"])
    group.deliver(rounds=2)
    assert group.operations[-1].end == float("inf"), "it has the index, and not yet the entry"
    beat(group, "n0")
    beat(group, "n0")
    assert group.operations[-1].end < float("inf")
    group.check_history()


def test_a_read_that_no_leader_answers_fails() -> None:
    group = led(ByHand())
    answers: list[bool] = []
    host = group.hosts["n1"]
    assert host.replica is not None
    host.replica.read(answers.append, host.local_ms())
    group.drop()
    group.elapse(ELECTION_TIMEOUT_MS)
    group.tick("n1")
    assert answers == [False]
    group.elapse(LONG_MS)
    group.tick("n1")
    with pytest.raises(NotLeader, match="knows no leader"):
        host.replica.read(answers.append, host.local_ms())


def test_an_answer_to_a_read_of_an_earlier_life_fits_none() -> None:
    group = led(ByHand())
    group.read(group.hosts["n1"])
    group.deliver(lambda message: message.target == "n0")
    (answer,) = [message for message in group.wire if isinstance(message, ReadReply)]
    group.drop()
    group.lose_power("n1")
    group.restart("n1")
    beat(group, "n0")
    group.read(group.hosts["n1"])
    group.arrive(answer)
    assert group.operations[-1].end == float("inf")


def test_too_many_reads_are_refused() -> None:
    group = led(ByHand(config=RaftConfig(**CONFIG, reads_max=2)))
    for name in ("n0", "n1"):
        group.elapse(190 if name == "n0" else 0)
        now_ms = group.hosts[name].local_ms()
        for _ in range(2):
            group.node(name).read(now_ms)
        with pytest.raises(QuorumBusy, match="2 reads wait"):
            group.node(name).read(now_ms)


def test_a_leader_that_steps_down_fails_its_reads() -> None:
    group = led(ByHand())
    node, now_ms = group.node("n0"), group.hosts["n0"].local_ms() + 190
    read_id = node.read(now_ms)
    node.receive(VoteReply(source="n1", target="n0", term=99, is_granted=False, is_pre_vote=False), now_ms)
    effects = node.take_effects(now_ms)
    assert effects is not None
    assert effects.reads == (ReadReady(read_id, None),)


# -- handing over


def test_the_leadership_is_handed_over_at_once_when_the_target_has_everything() -> None:
    group = led(ByHand())
    group.ask("n0", lambda node, now_ms: node.transfer("n2", now_ms))
    with pytest.raises(QuorumBusy, match="handed over to n2"):
        group.node("n0").propose(b"x")
    with pytest.raises(QuorumBusy, match="handed over to n2"):
        group.ask("n0", lambda node, now_ms: node.transfer("n1", now_ms))
    group.settle()
    assert group.node("n2").is_leader
    assert not group.node("n0").is_leader


def test_a_handing_over_that_comes_to_nothing_ends_and_leaves_no_lease() -> None:
    group = led(ByHand())
    group.ask("n0", lambda node, now_ms: node.transfer("n2", now_ms))
    (order,) = group.drop(lambda message: isinstance(message, StandNow))
    for _ in range(5):
        beat(group, "n0")
    assert group.put("n0").index < 0
    group.settle()
    assert group.operations[-1].index > 0, "it takes proposals again"
    assert not group.node("n0").has_lease(group.hosts["n0"].local_ms())
    group.arrive(order)  # late, and still obeyed
    group.settle()
    assert group.node("n2").is_leader


def test_a_handing_over_waits_until_the_target_has_everything() -> None:
    group = led(ByHand())
    group.put("n0")
    group.drop(lambda message: message.target == "n2")
    group.settle()
    group.ask("n0", lambda node, now_ms: node.transfer("n2", now_ms))
    assert not [message for message in group.wire if isinstance(message, StandNow)]
    beat(group, "n0")
    assert group.node("n2").is_leader


@pytest.mark.parametrize("target", ["n0", "s0", "absent"])
def test_only_another_voter_can_be_handed_the_leadership(target: str) -> None:
    group = led(ByHand(spares=1))
    with pytest.raises(MembershipRefused, match="is not another voter"):
        group.ask("n0", lambda node, now_ms: node.transfer(target, now_ms))


# -- members


def test_a_node_joins_as_a_learner_and_gets_a_vote_when_it_has_caught_up() -> None:
    group = led(ByHand(spares=1))
    group.ask("n0", lambda node, now_ms: node.add_learner("s0", now_ms))
    group.drop(lambda message: message.target == "s0")
    group.settle()
    with pytest.raises(MembershipRefused, match="s0 has 0 of 3 entries: try again when it has caught up"):
        group.ask("n0", lambda node, now_ms: node.promote("s0", now_ms))
    beat(group, "n0")
    group.ask("n0", lambda node, now_ms: node.promote("s0", now_ms))
    group.settle()
    assert group.node("s0").log.membership == Membership(("n0", "n1", "n2", "s0"))
    group.lose_power("n0")
    group.elect("s0")


def test_a_learner_does_not_stand() -> None:
    group = led(ByHand(spares=1))
    group.ask("n0", lambda node, now_ms: node.add_learner("s0", now_ms))
    group.settle()
    beat(group, "n0")
    assert group.node("s0").log.membership.learners == ("s0",)
    group.elapse(LONG_MS)
    group.tick("s0")
    assert group.drop() == []


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda node, now_ms: node.add_learner("n1", now_ms), "n1 is a member already"),
        (lambda node, now_ms: node.promote("s0", now_ms), "s0 is not a learner"),
        (lambda node, now_ms: node.remove("s0", now_ms), "s0 is not a member"),
    ],
)
def test_changes_that_make_no_sense_are_refused(call: Any, reason: str) -> None:
    group = led(ByHand(spares=1))
    with pytest.raises(MembershipRefused, match=reason):
        group.ask("n0", call)


def test_the_last_voter_stays_and_so_does_the_bound_on_members() -> None:
    group = led(ByHand(voters=1, config=RaftConfig(**CONFIG, members_max=1)))
    with pytest.raises(MembershipRefused, match="n0 is the last voter"):
        group.ask("n0", lambda node, now_ms: node.remove("n0", now_ms))
    with pytest.raises(MembershipRefused, match="there are 1 members, no more are allowed"):
        group.ask("n0", lambda node, now_ms: node.add_learner("s0", now_ms))


def test_a_change_is_refused_while_the_leadership_is_handed_over() -> None:
    group = led(ByHand(spares=1))
    group.ask("n0", lambda node, now_ms: node.transfer("n2", now_ms))
    with pytest.raises(MembershipRefused, match="handed over"):
        group.ask("n0", lambda node, now_ms: node.add_learner("s0", now_ms))


# -- snapshots


def test_a_follower_that_is_far_behind_gets_the_snapshot_in_chunks() -> None:
    config = {**CONFIG, "snapshot_interval_entries": 5, "entries_kept_max": 0, "snapshot_chunk_bytes": 30}
    group = led(ByHand(config=RaftConfig(**config)))
    group.lose_power("n2")
    for _ in range(12):
        group.put("n0")
        group.settle()
    assert group.node("n0").log.base_index >= 10
    group.restart("n2")
    chunks = 0
    for _ in range(200):
        chunks += sum(isinstance(message, SnapshotChunk) for message in group.wire)
        assert sum(isinstance(message, SnapshotChunk) for message in group.wire) <= 1, "one at a time"
        if not group.deliver():
            group.elapse(55)
            group.tick("n0")
    assert chunks > 3
    assert group.hosts["n2"].machine.values == group.hosts["n0"].machine.values
    group.lose_power("n2")
    group.restart("n2")
    assert group.node("n2").log.snapshot_index >= 10


def test_a_chunk_that_is_answered_twice_is_not_sent_twice() -> None:
    config = {**CONFIG, "snapshot_interval_entries": 5, "entries_kept_max": 0, "snapshot_chunk_bytes": 30}
    group = led(ByHand(config=RaftConfig(**config)))
    group.lose_power("n2")
    for _ in range(12):
        group.put("n0")
        group.settle()
    group.restart("n2")
    beat_without_answers(group)
    for _ in range(50):
        replies = [message for message in group.wire if isinstance(message, SnapshotReply)]
        for reply in replies:
            group.wire += [reply, reply]
        group.deliver()
        assert len([message for message in group.wire if isinstance(message, SnapshotChunk)]) <= 1


def test_a_snapshot_whose_bytes_do_not_fit_its_checksum_is_thrown_away() -> None:
    group = led(ByHand(spares=1))
    chunk = SnapshotChunk(
        source="n0",
        target="s0",
        term=5,
        index=9,
        snapshot_term=4,
        voters=("n0",),
        learners=(),
        offset=0,
        total_bytes=4,
        crc=1,
        round=1,
        data=b"abcd",
    )
    with pytest.raises(WireError, match="the snapshot at 9 from 'n0' is damaged"):
        group.node("s0").receive(chunk, group.hosts["s0"].local_ms())
    assert group.node("s0").log.last_index == 0


def test_only_what_is_applied_and_durable_becomes_a_snapshot() -> None:
    group = led(ByHand())
    node = group.node("n0")
    node.propose(b"x")
    with pytest.raises(UsageError, match="not applied, not durable, or older"):
        node.compact(node.log.last_index, b"")
