"""The directory of a Raft node: vote, snapshot and log, each durable before the call returns. I/O layer over `Disk`.

    DIRECTORY/vote              term, vote and the identity of this directory, replaced as a whole
    DIRECTORY/snapshot          index, term, members and state, replaced as a whole
    DIRECTORY/log-0000000001    entries; the next file begins when one is full. Layout in layout.py
    DIRECTORY/lock              held while the node runs

The log is only ever written at its end. A follower whose entries are replaced writes the new ones behind the
old: an entry invalidates all earlier entries with the same or a higher index.

open() truncates a lost tail, which was never acknowledged. It refuses any other damage with an error that
names file and byte: a member that guesses its earlier votes can elect a second leader.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from aerobee.errors import MalformedFrame, StoreError, StoreFull, StoreLocked, StoreNotWritable
from aerobee.ha.packed import array, array_of, blob, integer, pack_checked, text, unpack_checked
from aerobee.ha.raft import layout
from aerobee.ha.raft.entry import (
    FIRST_TERM,
    Entry,
    EntryKind,
    HardState,
    Membership,
    Snapshot,
    first_entry,
    membership_of,
)
from aerobee.ha.raft.log import Recovered
from aerobee.store.files.disk import Disk, FileLock, MappedFile, sync_names_above

_VOTE_BYTES_MAX = 1 << 10
_SNAPSHOT_HEAD_BYTES_MAX = 256 << 10  # in addition to the state: ids of the members
_LOG_NAME = re.compile(r"log-(\d{10})")
_VERSION = 2  # version 1 had no identities


@dataclass(slots=True)
class _LogFile:
    sequence: int
    last_index: int = -1  # the highest valid entry in the file; -1 for none


class RaftFiles:
    """A RaftStorage in a directory. After an error it refuses every write: open the directory again."""

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk,
        file_bytes: int = 4 << 20,
        entry_bytes_max: int = 1 << 20,
        snapshot_bytes_max: int = 256 << 20,
        new_identity: Callable[[], str] = str,
    ) -> None:
        """`new_identity` returns a new, distinct identity for a directory that has none; "" for directories
        without identity.
        """
        self.directory = directory
        self.identity = ""  # set by open(); durable with the first vote, before which the node sends nothing
        self._new_identity = new_identity
        self._disk = disk
        self._file_bytes = max(file_bytes, layout.FILE_HEAD.size + layout.record_bytes_max(entry_bytes_max))
        self._snapshot_bytes_max = snapshot_bytes_max + _SNAPSHOT_HEAD_BYTES_MAX
        self._lock: FileLock | None = None
        self._files: list[_LogFile] = []
        self._mapped: MappedFile | None = None  # of the last file
        self._end = 0  # in the last file
        self._synced_end = 0
        self._base_index = -1  # the log does not contain entries up to this index; -1 before the first record
        self._terms: list[int] = []  # of the entries behind it
        self._failure = ""

    # -- opening

    def open(self) -> Recovered:
        """Lock the directory and read what is in it. Raises StoreLocked, and StoreError when it is damaged."""
        with self._failing("the directory"):
            self._disk.make_dirs(self.directory)
            sync_names_above(self._disk, self.directory)
            self._take_lock()
            hard_state = self._read_vote()
            snapshot = self._read_snapshot()
            entries = self._read_log(snapshot)
        if hard_state is None and (snapshot is not None or entries):
            raise self._refusal("vote", -1, "it is missing, and log or snapshot are there")
        if not self.identity:
            self.identity = self._new_identity()
            if hard_state is not None and self.identity:
                self.save_hard_state(hard_state)
        hard_state = hard_state or HardState()
        newest = max((entry.term for entry in entries), default=snapshot.term if snapshot else 0)
        if newest > hard_state.term:
            raise self._refusal(
                "vote", -1, f"its term is {hard_state.term}, and the log has entries of {newest}"
            )
        return Recovered(hard_state, snapshot, entries, self.identity)

    def initialize(self, membership: Membership) -> Recovered:
        """Begin a group with these members in a directory that open() found new; each member gets the same list."""
        self.save_hard_state(HardState(FIRST_TERM))
        entry = first_entry(membership)
        self.append((entry,))
        return Recovered(HardState(FIRST_TERM), None, (entry,), self.identity)

    def close(self) -> None:
        """Release the directory. All data is on disk already."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- RaftStorage

    def save_hard_state(self, state: HardState) -> None:
        with self._failing("the vote"):
            value = (_VERSION, state.term, state.voted_for, self.identity)
            self._disk.replace_file(self._path("vote"), pack_checked(value))

    def save_snapshot(self, snapshot: Snapshot) -> None:
        member_ids = snapshot.membership
        value = (
            _VERSION,
            snapshot.index,
            snapshot.term,
            member_ids.voters,
            member_ids.learners,
            member_ids.identities,
            snapshot.data,
        )
        with self._failing("the snapshot"):
            self._disk.replace_file(self._path("snapshot"), pack_checked(value))
            self._follow_snapshot(snapshot)

    def append(self, entries: Sequence[Entry]) -> None:
        with self._failing("the log"):
            for entry in entries:
                self._write(entry)
            self._sync()

    # -- writing

    def _write(self, entry: Entry) -> None:
        assert self._mapped is not None, "the log is not open"
        record = layout.encode_record(entry, self._synced_end)
        if self._end + len(record) > self._mapped.size:
            self._sync()
            self._begin_file()
            record = layout.encode_record(entry, self._synced_end)
        self._mapped.buffer[self._end : self._end + len(record)] = record
        self._end += len(record)
        self._note_entry(entry, self._files[-1])

    def _sync(self) -> None:
        assert self._mapped is not None, "the log is not open"
        self._mapped.sync(self._synced_end, self._end)
        self._synced_end = self._end

    def _begin_file(self) -> None:
        """Start the next file: its name and head are on the disk before the first record is written."""
        sequence = self._files[-1].sequence + 1 if self._files else 1
        previous_end = self._end
        if self._mapped is not None:
            self._mapped.close()
        path = self._log_path(sequence)
        mapped = self._disk.create_mapped(path, self._file_bytes)
        mapped.reserve(mapped.size)
        mapped.buffer[: layout.FILE_HEAD.size] = layout.encode_file_head(sequence, previous_end)
        mapped.sync(0, layout.FILE_HEAD.size)
        self._disk.sync_dir(self.directory)
        self._mapped = mapped
        self._files.append(_LogFile(sequence))
        self._end = self._synced_end = layout.FILE_HEAD.size

    def _follow_snapshot(self, snapshot: Snapshot) -> None:
        """Continue the log after the snapshot, and remove files that contain only entries covered by it."""
        if self._term_at(snapshot.index) != snapshot.term:
            self._write(Entry(snapshot.index, snapshot.term, EntryKind.RESET, b""))
            self._sync()
        removed = False
        while len(self._files) > 1 and self._files[0].last_index <= snapshot.index:
            self._disk.remove(self._log_path(self._files.pop(0).sequence))
            removed = True
        if removed:
            self._disk.sync_dir(self.directory)

    def _term_at(self, index: int) -> int | None:
        position = index - self._base_index - 1
        return self._terms[position] if self._base_index >= 0 and 0 <= position < len(self._terms) else None

    def _note_entry(self, entry: Entry, file: _LogFile) -> None:
        """Record the log's next entry, and the entries that it replaces. Raises StoreError when some are missing."""
        if entry.kind is EntryKind.RESET:
            self._base_index = entry.index
            self._terms.clear()
            kept = -1
        else:
            if self._base_index < 0 or entry.index <= self._base_index:
                self._base_index = entry.index - 1
                self._terms.clear()
            position = entry.index - self._base_index - 1
            if position > len(self._terms):
                last = self._base_index + len(self._terms)
                raise self._refusal(
                    os.path.basename(self._log_path(file.sequence)),
                    -1,
                    f"entry {entry.index} stands in it behind entry {last}: those between are missing",
                )
            self._terms[position:] = [entry.term]
            kept = entry.index - 1
        for each in self._files:
            each.last_index = min(each.last_index, kept)
        if entry.kind is not EntryKind.RESET:
            file.last_index = entry.index

    # -- reading

    def _take_lock(self) -> None:
        try:
            self._lock = self._disk.lock(self._path("lock"))
        except StoreLocked as error:
            raise StoreLocked(
                f"the directory {self.directory} is in use by another controller: stop that one, or give this one "
                "another directory",
                path=self.directory,
            ) from error

    def _read_vote(self) -> HardState | None:
        path = self._path("vote")
        if not self._disk.exists(path):
            return None
        try:
            value = unpack_checked(self._disk.read_file(path), bytes_max=_VOTE_BYTES_MAX, what="it")
            _, term, voted_for, identity = self._of_version(value, 4, 3)
            self.identity = text(identity or "", "its identity")
            return HardState(integer(term, "its term"), text(voted_for, "its vote"))
        except MalformedFrame as error:
            raise self._refusal("vote", 0, str(error)) from error

    def _read_snapshot(self) -> Snapshot | None:
        path = self._path("snapshot")
        if not self._disk.exists(path):
            return None
        try:
            value = unpack_checked(self._disk.read_file(path), bytes_max=self._snapshot_bytes_max, what="it")
            _, index, term, voters, learners, identities, data = self._of_version(value, 7, 5)
            return Snapshot(
                integer(index, "its index"),
                integer(term, "its term"),
                membership_of(voters, learners, identities or ()),
                blob(data, "its state"),
            )
        except MalformedFrame as error:
            raise self._refusal("snapshot", 0, str(error)) from error

    @staticmethod
    def _of_version(value: object, count: int, added_at: int) -> tuple[object, ...]:
        """The values of a file, with None for values that version 1 does not have."""
        values = array(value, "it", count)
        version = values[0] if values else None
        if version == 1:
            values = array_of(values, "it", count - 1)
            return (*values[:added_at], None, *values[added_at:])
        if version != _VERSION:
            raise MalformedFrame(f"it is of version {version!r:.40}, this program reads version {_VERSION}")
        return array_of(values, "it", count)

    def _read_log(self, snapshot: Snapshot | None) -> tuple[Entry, ...]:
        """Read all files, truncate a lost tail and sync the rest. Return the entries behind the snapshot."""
        found: dict[int, Entry] = {}
        sequences = self._sequences()
        for sequence in sequences:
            is_last = sequence == sequences[-1]
            self._read_file(sequence, found, is_last=is_last)
        if not self._files:
            self._begin_file()
        index, term = (snapshot.index, snapshot.term) if snapshot is not None else (0, 0)
        last = self._base_index + len(self._terms)
        if self._base_index > index:
            raise self._refusal(
                "snapshot", -1, f"it ends at entry {index}, and the log begins behind {self._base_index}"
            )
        lacks_it = self._base_index < index and self._term_at(index) != term
        if self._base_index < 0 or lacks_it:
            # A crash interrupted the installation of a snapshot: the log's entries do not lead to the
            # snapshot.
            if snapshot is not None:
                self._write(Entry(index, term, EntryKind.RESET, b""))
                self._sync()
            return ()
        return tuple(found[each] for each in range(index + 1, last + 1))

    def _sequences(self) -> list[int]:
        """The numbers of the log's files. A last file without a head is removed."""
        names = [_LOG_NAME.fullmatch(name) for name in self._disk.list_dir(self.directory)]
        sequences = sorted(int(name[1]) for name in names if name)
        if sequences:
            path = self._log_path(sequences[-1])
            if not any(self._disk.read_file(path)):
                self._disk.remove(path)
                self._disk.sync_dir(self.directory)
                sequences.pop()
        for one, other in itertools.pairwise(sequences):
            if other != one + 1:
                raise self._refusal(
                    os.path.basename(self._log_path(one + 1)), -1, "it is missing, and later ones are there"
                )
        return sequences

    def _read_file(self, sequence: int, found: dict[int, Entry], *, is_last: bool) -> None:
        path = self._log_path(sequence)
        name = os.path.basename(path)
        data = self._disk.read_file(path)
        head = layout.decode_file_head(data)
        if head is None or head[0] != sequence:
            raise self._refusal(name, 0, "its head is damaged")
        if self._files and head[1] != self._end:
            raise self._refusal(
                os.path.basename(self._log_path(sequence - 1)),
                self._end,
                f"its records end there, and the next file says that they end at {head[1]}",
            )
        scan = layout.scan_file(data, is_last=is_last)
        if scan.fault:
            raise self._refusal(name, scan.end, scan.fault)
        self._files.append(_LogFile(sequence))
        for entry in scan.entries:
            self._note_entry(entry, self._files[-1])
            found[entry.index] = entry
        self._end = scan.end
        if is_last:
            self._take_over(path, scan, layout.zeros_from(data, scan.end))

    def _take_over(self, path: str, scan: layout.Scan, dirty_end: int) -> None:
        """Continue in the last file. Data that a failed sync may have left only in memory is written again."""
        self._mapped = mapped = self._disk.open_mapped(path)
        mapped.reserve(mapped.size)
        mapped.buffer[scan.end : dirty_end] = bytes(dirty_end - scan.end)
        end = max(dirty_end, scan.end)
        mapped.rewrite(scan.synced_end, end)
        mapped.sync(scan.synced_end, end)
        self._disk.sync_dir(self.directory)
        self._synced_end = scan.end

    # -- helpers

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _log_path(self, sequence: int) -> str:
        return self._path(f"log-{sequence:010d}")

    def _refusal(self, name: str, offset: int, reason: str) -> StoreError:
        path = self._path(name)
        where = f"{path}, byte {offset}" if offset >= 0 else path
        return StoreError(
            f"{where}: {reason}. This controller's vote and log cannot be read, so it does not start: "
            f"remove it from its group, delete {self.directory}, and add it again as a new member",
            path=path,
            offset=offset,
        )

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Refuse further writes after a failure: the state on disk is unknown."""
        if self._failure:
            raise StoreNotWritable(
                f"{self.directory}: {self._failure}; restart this controller", path=self.directory
            )
        try:
            yield
        except OSError as error:
            self._failure = f"{what} could not be read or written: {error}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(
                    f"no disk space for {what} in {self.directory}: {error}; free space and restart this controller",
                    path=self.directory,
                ) from error
            raise StoreError(
                f"{what} in {self.directory} could not be read or written: {error}; restart this controller once "
                "the disk is sound",
                path=self.directory,
            ) from error
        except StoreError as error:
            self._failure = str(error)
            raise
