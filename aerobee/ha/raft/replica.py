"""Executes the effects of a node in order, with its storage and state machine. The owner provides the network.

Every input except propose_deferred() ends in the same steps, repeated until nothing is left to do. A proposal
of propose_deferred() is processed with the next input:

    make durable  ->  on_persisted  ->  send  ->  restore, apply  ->  answer proposals and reads  ->  snapshot

A failing storage, or a command or snapshot that the state machine cannot read, ends the replica: it sends
nothing of the failed step and takes no further step.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from aerobee.errors import MalformedFrame, NewerVersion, StoreError
from aerobee.ha.raft.entry import Entry, EntryKind, Snapshot
from aerobee.ha.raft.log import RaftStorage
from aerobee.ha.raft.messages import Message
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.outgoing import Effects

log = logging.getLogger(__name__)


class StateMachine(Protocol):
    """The state machine to which entries are applied. The same entries give the same state and the same results on
    every member."""

    def apply(self, index: int, data: bytes) -> object:
        """Execute one command and return its result for the local caller that proposed it. Raises
        NewerVersion and then changes nothing.
        """
        ...

    def snapshot(self) -> bytes:
        """The whole state as of the last command."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the state by one that snapshot() returned. Raises MalformedFrame and then changes nothing."""
        ...


class Outcome(Enum):
    """Result of a proposal."""

    APPLIED = auto()
    REPLACED = auto()  # another leader's entry replaced the proposal: it never took effect
    # the proposal may have taken effect: a snapshot replaced the entry, or the replica ended
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class _Proposal:
    term: int
    on_done: Callable[[Outcome, object], None]


class Replica:
    """Drives one RaftNode. Not thread-safe; calls block for the storage's syncs."""

    def __init__(
        self,
        node: RaftNode,
        storage: RaftStorage,
        machine: StateMachine,
        *,
        send: Callable[[Message], None],
    ) -> None:
        """`send` gives a message to the network, which may lose it; `send` must not call this replica."""
        self.node = node
        self.applied_index = 0
        self._too_large_at = 0  # the entry whose state was too large for a snapshot
        self.failure: StoreError | None = None
        self._storage = storage
        self._machine = machine
        self._send = send
        self._proposals: dict[int, _Proposal] = {}
        self._reads: dict[int, Callable[[bool], None]] = {}  # reads without an index yet, by read id
        # heap of (index, read id): reads that wait until the index is applied
        self._confirmed: list[tuple[int, int]] = []
        snapshot = node.log.snapshot
        if snapshot is not None:
            self._restore(snapshot)
            self.applied_index = snapshot.index

    def tick(self, now_ms: float) -> None:
        """Do the work that is due. Raises StoreError when the storage failed, NewerVersion."""
        self._check()
        self.node.tick(now_ms)
        self._work(now_ms)

    def receive(self, message: Message, now_ms: float) -> None:
        """Process one message. Raises WireError for a message that no correct member sends to this one, StoreError."""
        self._check()
        try:
            self.node.receive(message, now_ms)
        finally:
            self._work(now_ms)

    def propose(self, data: bytes, on_done: Callable[[Outcome, object], None], now_ms: float) -> None:
        """Call propose_deferred(), then execute the effects."""
        self.propose_deferred(data, on_done)
        self._work(now_ms)

    def propose_deferred(self, data: bytes, on_done: Callable[[Outcome, object], None]) -> None:
        """Propose a command; `on_done` is called with its outcome and result. Raises the errors of RaftNode.propose().

        The next input or tick makes it durable and sends it: all proposals until then share one sync and one
        message.
        """
        self._check()
        term, index = self.node.propose(data)
        self._proposals[index] = _Proposal(term, on_done)

    def read(self, on_ready: Callable[[bool], None], now_ms: float) -> None:
        """Call back with True once the state machine has applied every command that any member acknowledged
        before this call.

        Call back with False when that cannot be confirmed. Raises NotLeader when no leader is known,
        QuorumBusy.
        """
        self._check()
        self._reads[self.node.read(now_ms)] = on_ready
        self._work(now_ms)

    def run(self, act: Callable[[RaftNode], object], now_ms: float) -> None:
        """Change members or transfer the leadership: call a method of the node, then execute its effects."""
        self._check()
        act(self.node)
        self._work(now_ms)

    def close(self) -> None:
        """End every pending call with an unknown outcome."""
        proposals, self._proposals = self._proposals, {}
        for proposal in proposals.values():
            proposal.on_done(Outcome.UNKNOWN, None)
        reads, self._reads = self._reads, {}
        for on_ready in reads.values():
            on_ready(False)
        self._confirmed.clear()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _work(self, now_ms: float) -> None:
        while (effects := self.node.take_effects(now_ms)) is not None:
            try:
                self._persist(effects)
            except StoreError as error:
                self.failure = error
                raise
            self.node.on_persisted(effects, now_ms)
            for message in effects.messages:
                self._send(message)
            try:
                self._apply(effects)
            except StoreError as error:
                self.failure = error
                raise
            for ready in effects.reads:
                self._on_read_ready(ready.read_id, ready.index)
            self._answer_reads()
            self._compact_if_due()

    def _persist(self, effects: Effects) -> None:
        # The term first: an entry of a term that the vote file does not know would be refused at the next start.
        if effects.hard_state is not None:
            self._storage.save_hard_state(effects.hard_state)
        if effects.snapshot is not None:
            self._storage.save_snapshot(effects.snapshot)
        if effects.entries:
            self._storage.append(effects.entries)

    def _apply(self, effects: Effects) -> None:
        if effects.restore is not None:
            assert effects.restore.index >= self.applied_index, "a snapshot reverts applied entries"
            self._restore(effects.restore)
            self.applied_index = effects.restore.index
            for index in [each for each in self._proposals if each <= self.applied_index]:
                self._proposals.pop(index).on_done(Outcome.UNKNOWN, None)
        for entry in effects.committed:
            self._apply_entry(entry)

    def _restore(self, snapshot: Snapshot) -> None:
        try:
            self._machine.restore(snapshot.data)
        except MalformedFrame as error:  # its checksum was correct, so the sender encoded it so
            raise NewerVersion(
                f"the snapshot up to entry {snapshot.index} is of a newer version ({error}): upgrade this controller"
            ) from error

    def _apply_entry(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, "an entry was left out"
        result = self._machine.apply(entry.index, entry.data) if entry.kind is EntryKind.COMMAND else None
        self.applied_index = entry.index
        proposal = self._proposals.pop(entry.index, None)
        if proposal is None:
            return
        if proposal.term == entry.term:
            proposal.on_done(Outcome.APPLIED, result)
        else:
            proposal.on_done(Outcome.REPLACED, None)

    def _on_read_ready(self, read_id: int, index: int | None) -> None:
        if index is not None:
            heapq.heappush(self._confirmed, (index, read_id))
        elif (on_ready := self._reads.pop(read_id, None)) is not None:
            on_ready(False)

    def _answer_reads(self) -> None:
        while self._confirmed and self._confirmed[0][0] <= self.applied_index:
            _, read_id = heapq.heappop(self._confirmed)
            if (on_ready := self._reads.pop(read_id, None)) is not None:
                on_ready(True)

    def _compact_if_due(self) -> None:
        interval = self.node.config.snapshot_interval_entries
        if self.applied_index - max(self.node.log.snapshot_index, self._too_large_at) < interval:
            return
        data = self._machine.snapshot()
        if len(data) > self.node.config.snapshot_bytes_max:
            # No snapshot can contain the state: the log grows, and the member serves until the state is
            # smaller.
            log.error(
                "the state after entry %d is %d bytes, more than a snapshot may have (%d): the log is not shortened",
                *(self.applied_index, len(data), self.node.config.snapshot_bytes_max),
            )
            self._too_large_at = self.applied_index
            return
        self.node.compact(self.applied_index, data)
