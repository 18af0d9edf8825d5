"""Single decisions of a Raft node: elections, leases, handing over, members, bounds, reads."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from aerobee.errors import (
    ConfigError,
    MembershipRefused,
    NotLeader,
    QuorumBusy,
    StoreError,
    UsageError,
    WireError,
)
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import HardState, Membership, first_entry
from aerobee.ha.raft.log import Recovered
from aerobee.ha.raft.messages import (
    AppendReply,
    AppendRequest,
    ReadReply,
    SnapshotChunk,
    SnapshotReply,
    StandNow,
    VoteReply,
    VoteRequest,
)
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.outgoing import ReadReady
from aerobee.ha.raft.progress import NEXT as FLOWS
from aerobee.ha.raft.progress import Flow, FlowEvent
from aerobee.ha.raft.replica import Outcome, Replica
from aerobee.ha.raft.roles import NEXT, Role, RoleEvent, next_role
from tests.simulation.raft_by_hand import HISTORIES, LONG_MS, ByHand
from tests.simulation.raft_world import ELECTION_TIMEOUT_MS, Values

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


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_history(history: Any) -> None:
    history()


# -- elections


def test_a_group_of_one_leads_itself_and_commits() -> None:
    group = ByHand(voters=1)
    group.elapse(LONG_MS)
    group.tick("n0")
    assert group.node("n0").is_leader
    assert group.put("n0").index == 3
    assert group.node("n0").has_lease(group.hosts["n0"].local_ms())


def test_a_node_alone_asks_whether_it_could_win_and_its_term_stays() -> None:
    group = led(ByHand())
    term = group.node("n1").term
    for _ in range(20):
        group.elapse(55)
        group.tick("n0", "n1")
        group.deliver(group.between("n0", "n2"), rounds=3)
        group.drop()
    assert group.node("n1").role is Role.PRE_CANDIDATE
    assert group.node("n1").term == term
    beat(group, "n0")
    assert group.node("n0").is_leader, "the node that came back did not disturb the leader"
    assert group.node("n1").role is Role.FOLLOWER


def test_a_leader_that_no_majority_answers_steps_down() -> None:
    group = led(ByHand())
    for _ in range(3):
        group.elapse(55)
        group.tick("n0")
        group.drop(lambda message: message.target != "n0")
    assert group.node("n0").is_leader
    group.elapse(55)
    group.tick("n0")
    assert not group.node("n0").is_leader


def test_the_lease_ends_before_the_leadership_and_with_the_first_order_to_stand() -> None:
    group = led(ByHand())
    host = group.hosts["n0"]
    until = host.node.lease_until_ms(host.local_ms())
    assert until - host.local_ms() == pytest.approx(ELECTION_TIMEOUT_MS * 0.9 / 1.1, abs=0.01)
    assert not group.node("n1").has_lease(group.hosts["n1"].local_ms())
    group.elapse(until - host.local_ms())
    assert host.node.is_leader
    assert not host.node.has_lease(host.local_ms())


def test_a_candidate_whose_log_is_older_gets_no_vote() -> None:
    group = led(ByHand())
    group.put("n0")
    group.deliver(lambda message: message.target == "n1")
    group.drop()
    group.lose_power("n0")
    group.elapse(LONG_MS)
    group.tick("n2")
    group.settle()
    assert not group.node("n2").is_leader
    group.elect("n1", among=("n1", "n2"))


def test_a_removed_leader_leads_until_that_is_committed() -> None:
    group = led(ByHand())
    group.ask("n0", lambda node, now_ms: node.remove("n0", now_ms))
    assert group.node("n0").is_leader
    group.settle()
    assert not group.node("n0").is_leader
    assert group.node("n0").commit_index == group.node("n0").log.last_index
    group.elect("n1", among=("n1", "n2"))
    assert group.node("n1").log.membership == Membership(("n1", "n2"))


def test_one_whose_removal_is_not_committed_can_still_win() -> None:
    group = led(ByHand(voters=2))
    group.ask("n0", lambda node, now_ms: node.remove("n0", now_ms))
    group.drop()
    group.lose_power("n0")
    group.restart("n0")
    group.elect("n0", is_silent=True)  # n1 cannot: its log is older, and it needs n0's vote
    group.settle()
    beat(group, "n0")
    assert group.node("n1").log.membership == Membership(("n1",))


def test_the_roles_are_a_whole_table() -> None:
    assert {role for role, _ in NEXT} == set(Role)
    assert {event for _, event in NEXT} == set(RoleEvent)
    assert set(NEXT.values()) == set(Role)
    with pytest.raises(RuntimeError, match="VOTE_WON cannot happen to a FOLLOWER"):
        next_role(Role.FOLLOWER, RoleEvent.VOTE_WON)
    assert {flow for flow, _ in FLOWS} == set(Flow)
    assert {event for _, event in FLOWS} == set(FlowEvent)


# -- the order of effects


def lone_node(config: RaftConfig, *, voters: tuple[str, ...] = ("a",)) -> RaftNode:
    recovered = Recovered(HardState(1), None, (first_entry(Membership(voters)),))
    return RaftNode("a", config, recovered, now_ms=0, random=lambda: 0.5)


def test_own_vote_and_own_entries_count_only_when_they_are_durable() -> None:
    node = lone_node(RaftConfig(**CONFIG))
    node.tick(1_000)
    assert node.role is Role.CANDIDATE
    effects = node.take_effects(1_000)
    assert effects is not None
    assert effects.hard_state == HardState(2, "a")
    assert node.take_effects(1_001) is None, "nothing more is given out before this is durable"
    assert not node.is_leader
    node.on_persisted(effects, 1_002)
    assert node.is_leader
    assert node.commit_index == 0
    effects = node.take_effects(1_003)
    assert effects is not None
    assert [entry.index for entry in effects.entries] == [2]
    assert effects.committed == ()
    node.tick(1_200)
    assert node.commit_index == 0
    node.on_persisted(effects, 1_201)
    assert node.commit_index == 2


def test_an_entry_that_was_replaced_meanwhile_is_not_taken_for_durable() -> None:
    node = lone_node(RaftConfig(**CONFIG), voters=("a", "b", "c"))

    def append(term: int, source: str) -> None:
        leader = lone_node(RaftConfig(**CONFIG))
        leader.term = term
        leader._append_own(_Uncounted(), _COMMAND, b"%d" % term)  # type: ignore[arg-type]
        node.receive(
            AppendRequest(
                source=source,
                target="a",
                term=term,
                prev_index=1,
                prev_term=1,
                commit_index=0,
                round=1,
                entries=leader.log.range(2, 2),
            ),
            10,
        )

    append(2, "b")
    effects = node.take_effects(10)
    assert effects is not None
    append(3, "c")
    node.on_persisted(effects, 11)
    assert node.log.stable_index == 1
    later = node.take_effects(11)
    assert later is not None
    assert [(entry.index, entry.term) for entry in later.entries] == [(2, 3)]


class _Uncounted:
    uncommitted_bytes = 0


_COMMAND = first_entry(Membership(("a",))).kind.COMMAND


def test_a_failed_storage_ends_the_replica() -> None:
    sent: list[object] = []

    class Broken:
        def save_hard_state(self, state: object) -> None:
            raise StoreError("the disk is broken")

        save_snapshot = append = save_hard_state

    replica = Replica(
        lone_node(RaftConfig(**CONFIG), voters=("a", "b")), Broken(), Values(ByHand()), send=sent.append
    )
    replica.tick(1_000)  # asks for pre-votes: nothing to save yet
    sent.clear()
    granted = VoteReply(source="b", target="a", term=2, is_granted=True, is_pre_vote=True)
    with pytest.raises(StoreError, match="the disk is broken"):
        replica.receive(granted, 1_001)
    assert sent == [], "a request for votes went out before the own vote was saved"
    with pytest.raises(StoreError, match="the disk is broken"):
        replica.tick(2_000)


# -- proposals and their bounds


def test_a_proposal_is_refused_by_followers_with_the_leaders_name() -> None:
    group = led(ByHand())
    with pytest.raises(NotLeader, match="n1 does not lead, n0 does") as refused:
        group.node("n1").propose(b"x")
    assert refused.value.leader == "n0"
    assert refused.value.retriable


def test_a_proposal_that_is_too_large_and_too_many_are_refused() -> None:
    group = led(ByHand(config=RaftConfig(**CONFIG, uncommitted_bytes_max=500)))
    with pytest.raises(UsageError, match="201 bytes, 200 are allowed"):
        group.node("n0").propose(bytes(201))
    group.node("n0").propose(bytes(200))
    group.node("n0").propose(bytes(200))
    with pytest.raises(QuorumBusy, match="wait for a majority, 500 are allowed"):
        group.node("n0").propose(bytes(200))
    beat(group, "n0")
    group.node("n0").propose(bytes(200))


def test_messages_and_what_is_under_way_are_bounded() -> None:
    group = led(
        ByHand(config=RaftConfig(**CONFIG, append_bytes_max=100, append_entries_max=3, in_flight_max=2))
    )
    for _ in range(20):
        group.node("n0").propose(b"x" * 10)
    beat_without_answers(group)
    for name in ("n1", "n2"):
        requests = [
            message
            for message in group.wire
            if isinstance(message, AppendRequest) and message.target == name and message.entries
        ]
        assert [len(request.entries) for request in requests] == [2, 2]
    group.settle()
    assert group.node("n2").log.last_index == group.node("n0").log.last_index


def beat_without_answers(group: ByHand) -> None:
    group.elapse(55)
    group.tick("n0")


def test_lost_entries_are_sent_again() -> None:
    group = led(ByHand())
    for _ in range(5):
        group.put("n0")
        group.drop(lambda message: message.target == "n1")
        group.settle()
    assert group.node("n1").log.last_index < group.node("n0").log.last_index
    beat(group, "n0")
    assert group.node("n1").log.last_index == group.node("n0").log.last_index
    assert group.node("n0").progress()["n1"] == group.node("n0").log.last_index
    assert group.node("n1").progress() == {}


def test_entries_of_a_leader_that_lost_are_replaced_and_their_proposer_is_told() -> None:
    group = led(ByHand())
    outcomes: list[Outcome] = []
    host = group.hosts["n0"]
    assert host.replica is not None
    for _ in range(3):
        host.replica.propose(b"lost", lambda outcome, result: outcomes.append(outcome), host.local_ms())
    group.drop()
    group.elect("n1", among=("n1", "n2"))
    group.put("n1")
    beat(group, "n1")
    beat(group, "n1")
    assert group.node("n0").log.last_index == group.node("n1").log.last_index
    assert outcomes[0] is Outcome.REPLACED
    host.replica.close()
    assert outcomes == [Outcome.REPLACED, Outcome.REPLACED, Outcome.UNKNOWN]
    group.check_history()


# -- reads


def test_a_read_with_a_lease_asks_nobody_and_without_one_a_majority() -> None:
    group = led(ByHand())
    host = group.hosts["n0"]
    group.read(host)
    assert group.operations[-1].end == group.now
    group.elapse(180)  # the lease is over
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


@pytest.mark.parametrize("target", ["n0", "s0", "nobody"])
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


# -- what no node of the group can have sent


def test_messages_that_cannot_be_are_refused() -> None:
    group = led(ByHand())
    node, now_ms = group.node("n1"), group.hosts["n1"].local_ms()
    append: dict[str, Any] = {
        "target": "n1",
        "term": node.term,
        "prev_index": 1,
        "prev_term": 1,
        "commit_index": 1,
        "round": 1,
        "entries": (),
    }
    with pytest.raises(WireError, match="'n0' to 'n1' reached 'n2'"):
        group.node("n2").receive(AppendRequest(source="n0", **append), now_ms)
    with pytest.raises(WireError, match="'n2' and 'n0' both lead in term"):
        node.receive(AppendRequest(source="n2", **append), now_ms)
    with pytest.raises(WireError, match="'n1' says it has entry 99 of 2"):
        group.node("n0").receive(
            AppendReply(
                source="n1",
                target="n0",
                term=node.term,
                is_accepted=True,
                index=99,
                rejected_index=0,
                hint_term=0,
                round=1,
            ),
            now_ms,
        )
    forged = lone_node(RaftConfig(**CONFIG))
    forged.term = node.term
    forged._append_own(_Uncounted(), _COMMAND, b"")  # type: ignore[arg-type]
    entries = tuple(entry for entry in forged.log.range(2, 2))
    newer = AppendRequest(
        source="n2", **{**append, "term": node.term + 1, "entries": _of_term(entries, node.term + 1)}
    )
    with pytest.raises(WireError, match="entry 2 would be replaced, and 2 entries are committed"):
        node.receive(newer, now_ms)
    assert node.log.term_at(2) == node.term - 1


@pytest.mark.parametrize("message", [VoteRequest, VoteReply])
def test_a_term_that_no_election_leads_to_is_not_taken(message: type[VoteRequest | VoteReply]) -> None:
    group = led(ByHand())
    node, now_ms = group.node("n1"), group.hosts["n1"].local_ms()
    term = node.term
    fields: dict[type, dict[str, Any]] = {
        VoteRequest: {"last_index": 1 << 60, "last_term": 1, "is_pre_vote": False, "is_ordered": True},
        VoteReply: {"is_granted": False, "is_pre_vote": False},
    }
    with pytest.raises(WireError, match="no election leads there"):
        node.receive(message(source="n2", target="n1", term=(1 << 63) - 1, **fields[message]), now_ms)
    assert node.term == term


def _of_term(entries: Any, term: int) -> Any:
    import dataclasses

    return tuple(dataclasses.replace(entry, term=term) for entry in entries)


def test_a_stranger_that_is_no_member_changes_nothing() -> None:
    group = led(ByHand(spares=1))
    node = group.node("n0")
    before = node.commit_index
    node.propose(b"x")
    reply = AppendReply(
        source="s0",
        target="n0",
        term=node.term,
        is_accepted=True,
        index=node.log.last_index,
        rejected_index=0,
        hint_term=0,
        round=1,
    )
    node.receive(reply, group.hosts["n0"].local_ms())
    assert node.commit_index == before


def test_a_pre_vote_does_not_change_the_voters_term() -> None:
    group = ByHand()
    node = group.node("n1")
    group.elapse(LONG_MS)
    request = VoteRequest(
        source="n2",
        target="n1",
        term=50,
        last_index=99,
        last_term=49,
        is_pre_vote=True,
        is_ordered=False,
    )
    group.arrive(request)
    assert node.term == 1
    (reply,) = group.drop()
    assert isinstance(reply, VoteReply)
    assert reply.is_granted
    assert reply.term == 50


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"election_timeout_ms": 0}, "raft.election_timeout_ms is 0, must be above 0"),
        ({"heartbeat_interval_ms": 150}, "must be at most half of election_timeout_ms"),
        ({"clock_drift_ratio_max": 0.5}, "must be 0 to 0.5"),
        ({"entries_kept_max": -1}, "must be 0 or more"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        RaftConfig(**{**CONFIG, **changes})


def test_the_lease_is_over_before_any_voters_timeout_whatever_the_clocks() -> None:
    for drift, timeout in itertools.product((0, 0.01, 0.1, 0.3), (100, 1_000)):
        config = RaftConfig(
            election_timeout_ms=timeout, heartbeat_interval_ms=20, clock_drift_ratio_max=drift
        )
        slowest_leader = config.lease_ms / (1 - drift)
        fastest_voter = timeout / (1 + drift)
        assert slowest_leader <= fastest_voter + 1e-9
