"""Mutations that break Raft, one at a time, to show that the simulated runs detect each.

    python tests/simulation/raft_mutations.py [--seeds 1000]

Each mutation replaces a step of the real code by a wrong one, as a careless change would. The histories of
raft_by_hand.py run, then runs (raft_world.py), until one breaks; printed is which. Ends with status 1 when a mutation survives all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from aerobee.ha.raft import layout
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Entry, HardState, Membership, Snapshot
from aerobee.ha.raft.leadership import Leadership, PendingRead
from aerobee.ha.raft.log import RaftLog
from aerobee.ha.raft.messages import AppendRequest, SnapshotChunk
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.replica import Replica
from aerobee.ha.raft.roles import Role
from aerobee.ha.raft.storage import RaftFiles
from aerobee.simulation.simulated_disk import SimulatedMappedFile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.simulation import raft_by_hand, raft_world

Mutation = contextlib.AbstractContextManager[Any]


def nothing(*args: object, **kwargs: object) -> None:
    """In place of a step that is left out."""


# -- what is durable


def vote_is_not_saved() -> Mutation:
    original = RaftFiles.save_hard_state

    def mutated(self: RaftFiles, state: HardState) -> None:
        original(self, HardState(state.term))

    return mock.patch.object(RaftFiles, "save_hard_state", mutated)


def log_is_not_synced() -> Mutation:
    return mock.patch.object(RaftFiles, "_sync", nothing)


def sent_before_it_is_durable() -> Mutation:
    original = Replica._persist

    def mutated(self: Replica, effects: Any) -> None:
        for message in effects.messages:
            self._send(message)
        original(self, effects)

    return mock.patch.object(Replica, "_persist", mutated)


def failed_sync_is_ignored() -> Mutation:
    original = RaftFiles._sync

    def mutated(self: RaftFiles) -> None:
        with contextlib.suppress(OSError):
            original(self)

    return mock.patch.object(RaftFiles, "_sync", mutated)


def what_a_failed_sync_left_is_taken_for_durable() -> Mutation:
    return mock.patch.object(SimulatedMappedFile, "rewrite", nothing)


def names_of_log_files_are_not_synced() -> Mutation:
    original = RaftFiles._begin_file

    def mutated(self: RaftFiles) -> None:
        with mock.patch.object(type(self._disk), "sync_dir", nothing):
            original(self)

    return mock.patch.object(RaftFiles, "_begin_file", mutated)


def torn_tail_is_trusted() -> Mutation:
    original = layout._whole_record

    def mutated(view: memoryview, at: int) -> Any:
        size, check, _, synced_end = layout.RECORD_HEAD.unpack_from(view, at)
        if size and check == size ^ layout.SIZE_CHECK:
            return view[at + layout.RECORD_HEAD.size : at + layout.RECORD_HEAD.size + size], synced_end
        return original(view, at)

    return mock.patch.object(layout, "_whole_record", mutated)


def log_does_not_follow_an_installed_snapshot() -> Mutation:
    return mock.patch.object(RaftFiles, "_follow_snapshot", nothing)


# -- elections


def two_votes_in_one_term() -> Mutation:
    return mock.patch.object(RaftNode, "_may_vote_for", lambda self, candidate: self.role is Role.FOLLOWER)


def half_is_a_majority() -> Mutation:
    return mock.patch.object(Membership, "quorum", property(lambda self: max(1, len(self.voters) // 2)))


def votes_for_a_shorter_log() -> Mutation:
    return mock.patch.object(RaftLog, "is_up_to_date", lambda self, index, term: term >= self.last_term)


def votes_for_an_older_log() -> Mutation:
    return mock.patch.object(RaftLog, "is_up_to_date", lambda self, index, term: index >= self.last_index)


def voters_do_not_wait_for_the_lease() -> Mutation:
    return mock.patch.object(RaftNode, "_follows_a_leader", lambda self, now_ms: self.role is Role.LEADER)


def a_restart_forgets_the_leader() -> Mutation:
    original = RaftNode.__init__

    def mutated(self: RaftNode, *args: Any, now_ms: float, **kwargs: Any) -> None:
        original(self, *args, now_ms=now_ms, **kwargs)
        self._promise_until_ms = now_ms

    return mock.patch.object(RaftNode, "__init__", mutated)


# -- the lease and reads


def lease_without_room_for_drift() -> Mutation:
    return mock.patch.object(
        RaftConfig,
        "lease_ms",
        property(lambda self: self.election_timeout_ms / (1 - self.clock_drift_ratio_max)),
    )


def lease_from_the_answer_on() -> Mutation:
    original = RaftNode._answering_peer

    def mutated(self: RaftNode, source: str, number: int) -> Any:
        found = original(self, source, number)
        if found is not None:
            found[1].contact_ms = max(found[1].contact_ms, self._heard_at)  # type: ignore[attr-defined]
        return found

    @contextlib.contextmanager
    def patched() -> Iterator[None]:
        receive = RaftNode.receive

        def noting(self: RaftNode, message: Any, now_ms: float) -> None:
            self._heard_at = now_ms  # type: ignore[attr-defined]
            receive(self, message, now_ms)

        with (
            mock.patch.object(RaftNode, "_answering_peer", mutated),
            mock.patch.object(RaftNode, "receive", noting),
        ):
            yield

    return patched()


def lease_goes_on_after_an_order_to_stand() -> Mutation:
    original = Leadership.lease_began_ms

    def mutated(self: Leadership, membership: Membership, now_ms: float) -> float:
        self.lease_is_given_up = False
        return original(self, membership, now_ms)

    return mock.patch.object(Leadership, "lease_began_ms", mutated)


def reads_ask_nobody() -> Mutation:
    def mutated(self: RaftNode, leadership: Leadership, read_id: int, source: str, now_ms: float) -> None:
        self._answer_read(read_id, source, self.commit_index)

    return mock.patch.object(RaftNode, "_lead_read", mutated)


def reads_do_not_wait_for_the_first_entry() -> Mutation:
    def mutated(self: RaftNode, leadership: Leadership, read_id: int, source: str, now_ms: float) -> None:
        leadership.round_is_wanted = True
        leadership.reads.append(PendingRead(read_id, source, self.commit_index, leadership.round + 1))

    return mock.patch.object(RaftNode, "_lead_read", mutated)


def reads_count_a_round_that_began_before_them() -> Mutation:
    def mutated(self: RaftNode, leadership: Leadership, read_id: int, source: str, now_ms: float) -> None:
        if self.commit_index < leadership.first_index:
            leadership.early_reads.append((read_id, source))
        else:
            leadership.reads.append(PendingRead(read_id, source, self.commit_index, leadership.round - 1))

    return mock.patch.object(RaftNode, "_lead_read", mutated)


def reads_do_not_wait_until_it_is_applied() -> Mutation:
    def mutated(self: Replica, read_id: int, index: int | None) -> None:
        if (on_ready := self._reads.pop(read_id, None)) is not None:
            on_ready(index is not None)

    return mock.patch.object(Replica, "_on_read_ready", mutated)


# -- the log


def commits_entries_of_earlier_terms_by_counting() -> Mutation:
    original = RaftNode._advance_commit

    def mutated(self: RaftNode, leadership: Leadership, now_ms: float) -> None:
        index = leadership.quorum_index(self.log.membership, self.log.stable_index)
        self.commit_index = max(self.commit_index, min(index, self.log.last_index))
        original(self, leadership, now_ms)

    return mock.patch.object(RaftNode, "_advance_commit", mutated)


def commits_what_it_has_and_not_what_was_compared() -> Mutation:
    original = RaftNode._on_append

    def mutated(self: RaftNode, request: AppendRequest, now_ms: float) -> None:
        original(self, request, now_ms)
        self._commit_up_to(min(request.commit_index, self.log.last_index))

    return mock.patch.object(RaftNode, "_on_append", mutated)


def says_it_has_all_that_stands_in_its_log() -> Mutation:
    original = RaftNode._accept_append

    def mutated(self: RaftNode, request: AppendRequest | SnapshotChunk, index: int) -> None:
        original(self, request, self.log.last_index)

    return mock.patch.object(RaftNode, "_accept_append", mutated)


def entries_are_taken_without_a_look_at_the_one_before() -> Mutation:
    original = RaftNode._on_append

    def mutated(self: RaftNode, request: AppendRequest, now_ms: float) -> None:
        if self.log.base_index <= request.prev_index <= self.log.last_index:
            with mock.patch.object(RaftLog, "term_at", _always(self.log, request)):
                original(self, request, now_ms)
        else:
            original(self, request, now_ms)

    def _always(log: RaftLog, request: AppendRequest) -> Callable[[RaftLog, int], int | None]:
        term_at = RaftLog.term_at

        def answer(self: RaftLog, index: int) -> int | None:
            return request.prev_term if index == request.prev_index else term_at(self, index)

        return answer

    return mock.patch.object(RaftNode, "_on_append", mutated)


def an_old_message_cuts_the_log() -> Mutation:
    def mutated(self: RaftLog, entries: Sequence[Entry], *, commit_index: int) -> None:
        entries = [entry for entry in entries if entry.index > self.base_index]
        if entries:
            if entries[0].index <= self.last_index:
                self._cut_from(entries[0].index, 0)
            self._push(entries)

    return mock.patch.object(RaftLog, "append", mutated)


def entries_of_another_leader_stay() -> Mutation:
    def mutated(self: RaftLog, entries: Sequence[Entry], *, commit_index: int) -> None:
        self._push([entry for entry in entries if entry.index > self.last_index])

    return mock.patch.object(RaftLog, "append", mutated)


def snapshot_is_not_given_to_the_state_machine() -> Mutation:
    original = RaftNode._install

    def mutated(self: RaftNode, snapshot: Snapshot) -> None:
        original(self, snapshot)
        self._restore = None

    return mock.patch.object(RaftNode, "_install", mutated)


# -- members


def changes_do_not_wait_for_the_one_before() -> Mutation:
    return mock.patch.object(RaftLog, "membership_index", property(lambda self: 0))


def changes_do_not_wait_for_an_entry_of_the_term() -> Mutation:
    original = RaftNode._change

    def mutated(self: RaftNode, members: Membership, now_ms: float) -> tuple[int, int]:
        leadership = self._leading()
        first, leadership.first_index = leadership.first_index, 0
        try:
            return original(self, members, now_ms)
        finally:
            leadership.first_index = first

    return mock.patch.object(RaftNode, "_change", mutated)


def members_of_replaced_entries_stay() -> Mutation:
    original = RaftLog._cut_from

    def mutated(self: RaftLog, index: int, commit_index: int) -> None:
        kept = list(self._memberships)
        original(self, index, commit_index)
        self._memberships = kept

    return mock.patch.object(RaftLog, "_cut_from", mutated)


# With a seed that is known to notice, tried first; 0 where a history does. When the runs change another is looked for.
MUTATIONS: dict[Callable[[], Mutation], int] = {
    vote_is_not_saved: 0,
    log_is_not_synced: 0,
    sent_before_it_is_durable: 0,
    failed_sync_is_ignored: 65,
    what_a_failed_sync_left_is_taken_for_durable: 0,
    names_of_log_files_are_not_synced: 11,
    torn_tail_is_trusted: 0,
    log_does_not_follow_an_installed_snapshot: 5,
    two_votes_in_one_term: 0,
    half_is_a_majority: 0,
    votes_for_a_shorter_log: 3,
    votes_for_an_older_log: 0,
    voters_do_not_wait_for_the_lease: 0,
    a_restart_forgets_the_leader: 0,
    lease_without_room_for_drift: 0,
    lease_from_the_answer_on: 0,
    lease_goes_on_after_an_order_to_stand: 0,
    reads_ask_nobody: 0,
    reads_do_not_wait_for_the_first_entry: 0,
    reads_count_a_round_that_began_before_them: 0,
    reads_do_not_wait_until_it_is_applied: 0,
    commits_entries_of_earlier_terms_by_counting: 0,
    commits_what_it_has_and_not_what_was_compared: 0,
    says_it_has_all_that_stands_in_its_log: 0,
    entries_are_taken_without_a_look_at_the_one_before: 0,
    an_old_message_cuts_the_log: 0,
    entries_of_another_leader_stay: 0,
    snapshot_is_not_given_to_the_state_machine: 5,
    changes_do_not_wait_for_the_one_before: 0,
    changes_do_not_wait_for_an_entry_of_the_term: 0,
    members_of_replaced_entries_stay: 0,
}


def first_to_notice(mutation: Callable[[], Mutation], seeds: Iterable[int]) -> tuple[str, str] | None:
    """The first history or seed that breaks under the mutation, and how; None when all pass."""
    with mutation():
        for history in raft_by_hand.HISTORIES:
            try:
                history()
            except Exception as error:
                return history.__name__, f"{type(error).__name__}: {error}"
        for seed in seeds:
            try:
                raft_world.run_life(seed)
            except Exception as error:
                return str(seed), f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    survivors = 0
    for mutation, known in MUTATIONS.items():
        if options.only not in mutation.__name__:
            continue
        fresh = range(options.first, options.first + options.seeds)
        noticed = first_to_notice(mutation, itertools.chain(fresh, (known,)))
        survivors += noticed is None
        by, how = noticed or (None, "SURVIVES")
        print(json.dumps({"mutation": mutation.__name__, "noticed_by": by, "how": how[:160]}), flush=True)
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
