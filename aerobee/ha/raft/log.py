"""The log of a Raft node in memory, and the interface of its storage. Core.

      base            snapshot_index        stable          last
    ...|--------------------|------------------|---------------|
       entries kept for slow followers     on disk     not yet on disk

`base` is the last entry that was dropped. Entries behind `stable` are not durable: no message may report them
as stored. Invariants: base <= snapshot_index, base <= stable <= last, and terms never go down from one entry
to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aerobee.errors import UsageError, WireError
from aerobee.ha.raft.entry import (
    FIRST_TERM,
    Entry,
    EntryKind,
    HardState,
    Membership,
    Snapshot,
    decode_membership,
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """Content of a storage at its opening. The entries follow the snapshot, or begin at 1 without one."""

    hard_state: HardState
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    identity: str = ""  # identity of the data directory; "": it has none

    @property
    def is_new(self) -> bool:
        """Whether this node has never been part of a group."""
        return self.snapshot is None and not self.entries and self.hard_state.term <= FIRST_TERM


class RaftStorage(Protocol):
    """Durable storage. Each call returns when its data survives power loss, or raises StoreError.

    After an error the state on disk is unknown: the node must stop and recover from disk.
    """

    def save_hard_state(self, state: HardState) -> None: ...

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the snapshot. The storage may drop the entries up to it; when the log does not contain the
        snapshot's entry, it drops the whole log.
        """
        ...

    def append(self, entries: Sequence[Entry]) -> None:
        """Append consecutive entries. They replace existing entries from the first one's index on."""
        ...


class RaftLog:
    """Entries, terms and memberships by index."""

    def __init__(self, recovered: Recovered) -> None:
        self.snapshot = recovered.snapshot
        self._entries: list[Entry] = []
        self._bytes = 0
        self.base_index = 0
        self.base_term = 0
        membership = Membership()
        if recovered.snapshot is not None:
            self.base_index, self.base_term = recovered.snapshot.index, recovered.snapshot.term
            membership = recovered.snapshot.membership
        self._memberships: list[tuple[int, Membership]] = [(self.base_index, membership)]
        self._push(recovered.entries)
        self.stable_index = self.last_index

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def snapshot_index(self) -> int:
        return self.snapshot.index if self.snapshot is not None else 0

    @property
    def membership(self) -> Membership:
        """The members of the newest membership entry, committed or not: a node acts by this entry."""
        return self._memberships[-1][1]

    @property
    def membership_index(self) -> int:
        """Index of the newest membership entry."""
        return self._memberships[-1][0]

    def membership_at(self, index: int) -> Membership:
        """The members as of the entry at `index`, which must not be before the base."""
        return next(members for at, members in reversed(self._memberships) if at <= index)

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None when the entry was dropped or does not exist yet."""
        if index == self.base_index:
            return self.base_term
        position = index - self.base_index - 1
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends with this index and term contains every entry that this log may have committed."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def entries_from(self, index: int, *, bytes_max: int, count_max: int) -> tuple[Entry, ...]:
        """Entries from `index` on within the bounds; at least one entry if any exists."""
        position = index - self.base_index - 1
        found: list[Entry] = []
        size = 0
        for entry in self._entries[position : position + count_max]:
            size += entry.size
            if found and size > bytes_max:
                break
            found.append(entry)
        return tuple(found)

    def range(self, first: int, last: int) -> tuple[Entry, ...]:
        """The entries `first` to `last`, which must exist."""
        return tuple(self._entries[first - self.base_index - 1 : last - self.base_index])

    def bytes_behind(self, index: int) -> int:
        """Bytes of the entries behind `index`."""
        position = max(0, index - self.base_index)
        if position == 0:
            return self._bytes
        return sum(entry.size for entry in self._entries[position:])

    def last_index_of_term(self, index: int, term: int) -> int:
        """The last entry at or before `index` whose term is at most `term`; before the base when none is known."""
        index = min(index, self.last_index)
        while index >= self.base_index and (self.term_at(index) or 0) > term:
            index -= 1
        return index

    def append(self, entries: Sequence[Entry], *, commit_index: int) -> None:
        """Append entries whose predecessor is in the log. Equal entries stay, and so do the ones behind them.

        An entry of another term replaces the entry at its index and all behind it. Raises WireError and
        changes nothing when it would replace a committed entry: no legitimate leader sends that.
        """
        for position, entry in enumerate(entries):
            term = self.term_at(entry.index)
            if term == entry.term or entry.index <= self.base_index:
                continue
            if term is not None:
                self._cut_from(entry.index, commit_index)
            self._push(entries[position:])
            return

    def note_stable(self, index: int, term: int) -> None:
        """Note that the storage has every entry up to this one. Ignored when the entry was replaced meanwhile."""
        if index > self.stable_index and self.term_at(index) == term:
            assert index <= self.last_index, "an entry that the log does not have is durable"
            self.stable_index = index

    def unstable(self) -> tuple[Entry, ...]:
        """The entries that the storage does not have yet."""
        return self.range(self.stable_index + 1, self.last_index)

    def check_snapshot(self, index: int, applied_index: int) -> int:
        """The term of the entry at `index`. Raises UsageError when no snapshot can be taken there."""
        term = self.term_at(index)
        if term is None or not self.snapshot_index < index <= min(applied_index, self.stable_index):
            raise UsageError(
                f"a snapshot at {index}, which is not applied, not durable, or older than the last"
            )
        return term

    def compact(self, snapshot: Snapshot, *, kept_max: int) -> None:
        """Record a snapshot of the applied state, and drop the entries before it except the last `kept_max`."""
        self.snapshot = snapshot
        base = max(self.base_index, snapshot.index - kept_max)
        term = self.term_at(base)
        assert term is not None, "a snapshot was taken of entries that are not here"
        gone = self._entries[: base - self.base_index]
        del self._entries[: len(gone)]
        self._bytes -= sum(entry.size for entry in gone)
        self.base_index, self.base_term = base, term
        assert self.stable_index >= base, "an entry was forgotten before it was durable"
        while len(self._memberships) > 1 and self._memberships[1][0] <= base:
            del self._memberships[0]

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a snapshot from the leader."""
        self.snapshot = snapshot
        self._entries.clear()
        self._bytes = 0
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self.stable_index = snapshot.index
        self._memberships = [(snapshot.index, snapshot.membership)]

    def _cut_from(self, index: int, commit_index: int) -> None:
        if index <= commit_index:
            raise WireError(
                f"entry {index} would be replaced, and {commit_index} entries are committed: "
                "two leaders have different entries at the same index"
            )
        position = index - self.base_index - 1
        assert 0 <= position < len(self._entries), "an entry that is cut off is in the log"
        self._bytes -= sum(entry.size for entry in self._entries[position:])
        del self._entries[position:]
        self.stable_index = min(self.stable_index, index - 1)
        while self._memberships[-1][0] >= index:
            self._memberships.pop()

    def _push(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            assert entry.index == self.last_index + 1, "an entry does not follow the log's last one"
            assert entry.term >= self.last_term, "an entry is older than the one before it"
            self._entries.append(entry)
            self._bytes += entry.size
            if entry.kind is EntryKind.MEMBERSHIP:
                self._memberships.append((entry.index, decode_membership(entry.data)))


def check_before_write(
    state: HardState, saved: HardState, log: RaftLog, handed_index: int, commit_index: int
) -> None:
    """Assert the invariants of the state that becomes durable next. `saved` is durable; entries up to
    `handed_index` are applied.
    """
    assert handed_index <= commit_index, "the commit index fell"
    assert commit_index <= log.last_index, "an entry that the log does not have is committed"
    assert log.stable_index <= log.last_index, "an entry that the log does not have is durable"
    assert state.term >= saved.term, "the term fell"
    is_other_vote = saved.voted_for not in ("", state.voted_for)
    assert state.term > saved.term or not is_other_vote, "a second vote in one term"
