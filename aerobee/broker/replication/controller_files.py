"""Files of a broker in controller mode: its id (brokerIdentity) and the epochs of its log (epochFileCheckpoint).

Each file is replaced as a whole and durable when the call returns. They are written on the event loop when an id is
assigned or the master changes: nothing may be appended before its epoch is on disk.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence

from aerobee.errors import MalformedFrame, StoreError
from aerobee.ha.stream.broker_identity import HeldId, decode_held_id
from aerobee.ha.stream.epoch_file import (
    FILE_BYTES_MAX,
    CommonPoint,
    EpochEntry,
    append_epoch,
    cut_epochs,
    decode_epochs,
    encode_epochs,
    without_deleted,
)
from aerobee.ha.stream.handshake import ENTRIES_MAX
from aerobee.store.files.disk import Disk

log = logging.getLogger(__name__)
END_OF_LAST = (1 << 63) - 1  # an epoch that has not ended


class IdentityFiles:
    """The two files of a broker's id."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._temporary_path = path + "-temp"

    def read(self, cluster: str, name: str) -> HeldId | None:
        """The id that is held, None for a new broker. Raises StoreError for a damaged file, or one of another broker."""
        return self._read(self._path, cluster, name, is_temporary=False)

    def read_temporary(self, cluster: str, name: str) -> HeldId | None:
        """The id that was requested. Raises StoreError."""
        return self._read(self._temporary_path, cluster, name, is_temporary=True)

    def write_temporary(self, held: HeldId) -> None:
        """Store the requested id, so that the next start requests the same one."""
        self._write(self._temporary_path, held)

    def write(self, held: HeldId) -> None:
        """Store this broker's id, and remove the requested one."""
        self._write(self._path, held)
        self.forget_temporary()

    def forget_temporary(self) -> None:
        """Remove the file of a requested id."""
        if self._disk.exists(self._temporary_path):
            self._disk.remove(self._temporary_path)

    def _read(self, path: str, cluster: str, name: str, *, is_temporary: bool) -> HeldId | None:
        if not self._disk.exists(path):
            return None
        try:
            held = decode_held_id(self._disk.read_file(path), is_temporary=is_temporary)
        except (MalformedFrame, OSError) as error:
            raise StoreError(f"{path}: {error}", path=path) from error
        if (held.cluster, held.name) != (cluster, name):
            raise StoreError(
                f"{path} belongs to broker {held.name} of {held.cluster}, and this one is {name} of {cluster}: give each "
                "broker a separate directory, or set brokerName and brokerClusterName back",
                path=path,
            )
        return held

    def _write(self, path: str, held: HeldId) -> None:
        try:
            self._disk.replace_file(path, held.encode())
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}", path=path) from error


class Epochs:
    """The epochs of this broker's log."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.entries: tuple[EpochEntry, ...] = ()

    def load(self) -> None:
        """Read the file, or its copy when it is damaged. Raises StoreError when both are."""
        failure: Exception | None = None
        for path in (self._path, self._path + ".bak"):
            if not self._disk.exists(path):
                continue
            try:
                self.entries = decode_epochs(self._disk.read_file(path)[: FILE_BYTES_MAX + 1])
                return
            except (MalformedFrame, OSError) as error:
                log.error("%s: %s", path, error)
                failure = error
        if failure is not None:
            raise StoreError(
                f"{self._path} and its copy are damaged: which master wrote which part of the log is not known. Move the store "
                "away and let this broker begin empty as a slave",
                path=self._path,
            ) from failure

    @property
    def last_epoch(self) -> int:
        """-1 before the first."""
        return self.entries[-1].epoch if self.entries else -1

    def begin(self, epoch: int, start_offset: int) -> None:
        """A master's epoch begins there; one that is known already changes nothing. Raises StoreError, MalformedFrame."""
        if epoch <= self.last_epoch:
            return
        self._keep(append_epoch(self.entries, epoch, start_offset))

    def cut(self, point: CommonPoint) -> None:
        """The log was cut there. Raises StoreError."""
        self._keep(cut_epochs(self.entries, point))

    def clear(self) -> None:
        """The log was truncated to 0. Raises StoreError."""
        self._keep(())

    def follow_log(self, min_offset: int, end: int) -> None:
        """Remove epochs of deleted bytes, and epochs that begin after the log's end."""
        kept = without_deleted([each for each in self.entries if each.start_offset <= end], min_offset)
        if kept != self.entries:
            self._keep(kept)

    def sent(self) -> tuple[EpochEntry, ...]:
        """The epochs to send to a slave: the newest that fit its buffer."""
        return self.entries[-ENTRIES_MAX:]

    def at(self, physical_offset: int) -> tuple[EpochEntry, int] | None:
        """The epoch that a byte belongs to, and where it ends (END_OF_LAST for the last); None before the first."""
        index = bisect.bisect_right(self.entries, physical_offset, key=lambda each: each.start_offset) - 1
        if index < 0:
            return None
        end = self.entries[index + 1].start_offset if index + 1 < len(self.entries) else END_OF_LAST
        return self.entries[index], end

    def _keep(self, entries: Sequence[EpochEntry]) -> None:
        kept = tuple(entries)
        try:
            self._disk.replace_file(self._path, encode_epochs(kept))
            self._disk.replace_file(self._path + ".bak", encode_epochs(kept))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}", path=self._path) from error
        self.entries = kept
