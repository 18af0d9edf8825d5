"""Single decisions of a Raft node: elections, leases, the order of effects, proposals and their bounds, untrusted peers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from aerobee.errors import (
    ConfigError,
    NotLeader,
    QuorumBusy,
    StoreError,
    UsageError,
    WireError,
)
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Entry, HardState, Membership, first_entry
from aerobee.ha.raft.messages import (
    AppendReply,
    AppendRequest,
    VoteReply,
    VoteRequest,
)
from aerobee.ha.raft.progress import NEXT as FLOWS
from aerobee.ha.raft.progress import Flow, FlowEvent
from aerobee.ha.raft.replica import Outcome, Replica
from aerobee.ha.raft.roles import NEXT, Role, RoleEvent, next_role
from tests.simulation.raft_by_hand import HISTORIES, LONG_MS, ByHand
from tests.simulation.raft_world import ELECTION_TIMEOUT_MS, Values
from tests.unit.ha.raft_group import CONFIG, beat, beat_without_answers, led, lone_node


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


def test_a_leader_that_was_held_up_hears_the_others_before_it_steps_down() -> None:
    group = led(ByHand())
    host = group.hosts["n0"]
    group.elapse(2 * ELECTION_TIMEOUT_MS)
    group.tick("n0")
    assert host.node.is_leader
    assert not host.node.has_lease(host.local_ms()), "nothing is promised on what was not heard"
    group.settle()
    assert host.node.is_leader
    assert host.node.has_lease(host.local_ms())


def test_a_leader_that_is_alone_steps_down_however_often_it_is_held_up() -> None:
    group = led(ByHand())
    for is_leader in (True, False):
        group.elapse(2 * ELECTION_TIMEOUT_MS)
        group.tick("n0")
        group.drop()
        assert group.node("n0").is_leader is is_leader


def test_a_leader_that_was_held_up_gives_way_to_the_one_elected_meanwhile() -> None:
    group = led(ByHand())
    group.elapse(LONG_MS)
    group.elect("n1", among=("n1", "n2"))
    group.tick("n0")
    group.settle()
    assert not group.node("n0").is_leader
    assert group.node("n1").is_leader


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
    next_effects = node.take_effects(11)
    assert next_effects is not None
    assert [(entry.index, entry.term) for entry in next_effects.entries] == [(2, 3)]


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


def test_a_deferred_proposal_of_an_old_leader_is_replaced() -> None:
    saved: list[tuple[int, int, bytes]] = []
    done: list[Outcome] = []

    class Disk:
        def save_hard_state(self, state: HardState) -> None: ...

        def save_snapshot(self, snapshot: object) -> None: ...

        def append(self, entries: Sequence[Entry]) -> None:
            saved.extend((entry.index, entry.term, entry.data) for entry in entries)

    replica = Replica(
        lone_node(RaftConfig(**CONFIG), voters=("a", "b", "c")), Disk(), Values(ByHand()), send=lambda _: None
    )
    replica.tick(1_000)
    for is_pre_vote, term in ((True, 2), (False, 2)):
        replica.receive(
            VoteReply(source="b", target="a", term=term, is_granted=True, is_pre_vote=is_pre_vote), 1_001
        )
    assert replica.node.is_leader
    last = replica.node.log.last_index
    replica.propose_deferred(b"mine", lambda outcome, result: done.append(outcome))
    entries = tuple(
        Entry(last + 1 + number, 3, _COMMAND, data) for number, data in enumerate((b"theirs", b"and"))
    )
    replica.receive(
        AppendRequest(
            source="b",
            target="a",
            term=3,
            prev_index=last,
            prev_term=2,
            commit_index=last + 2,
            round=1,
            entries=entries,
        ),
        1_002,
    )
    assert done == [Outcome.REPLACED]
    assert [each for each in saved if each[0] > last] == [(last + 1, 3, b"theirs"), (last + 2, 3, b"and")]
    assert replica.applied_index == last + 2


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


def test_a_peer_outside_the_membership_changes_nothing() -> None:
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
