"""Recovers the key index at start-up: decides which files are kept, and from which offset the log is indexed again."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.store.files.checkpoint import Checkpoint
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.dispatch import DispatchRecord, index_texts
from aerobee.store.queue.queue_bounds import QueueBounds


class IndexRecovery:
    """Compares the index with the log and the checkpoint. Blocking."""

    def __init__(
        self,
        index: KeyIndex,
        log: CommitLog,
        checkpoint: Checkpoint,
        bounds: QueueBounds | None,
        *,
        note: Callable[[str], None],
        before_rebuild: Callable[[], None],
    ) -> None:
        """`note` receives sentences for the report; `before_rebuild` durably marks the index as untrusted."""
        self._index = index
        self._log = log
        self._checkpoint = checkpoint
        self._bounds = bounds
        self._note = note
        self._before_rebuild = before_rebuild
        self.is_lost = False  # files were deleted: their records are indexed again
        self.files_rebuilt = 0

    def judge(self, dispatch_from: int, *, checks_all: bool) -> None:
        """Missing index files, or files with other content: their records are indexed again."""
        if not self._index.is_enabled or self.is_lost:
            return
        why = self._index.first_fault(self._log.end)
        expected = self._bounds.index_end if self._bounds is not None else -1
        if not why and self._index.last_physical_offset < min(expected, dispatch_from - 1):
            why = f"it ends at {self._index.last_physical_offset} of {expected}"
        if not why and self._is_gone(dispatch_from):
            why = "there is no file, and the checkpoint says that there was one"
            if not checks_all:
                self._note(
                    f"the key index in {self._index.directory} is gone; records from here on are indexed, and `aerobee store "
                    "repair` indexes the older ones"
                )
                return
        if why:
            self._before_rebuild()
            self._index.remove_faulty()
            self.is_lost = True
            self.files_rebuilt += 1
            self._note(f"the key index in {self._index.directory} is not whole ({why}) and is built again")

    def _is_gone(self, dispatch_from: int) -> bool:
        """Whether RocketMQ's checkpoint names an index that does not exist. Aerobee's checkpoint also contains the
        index's end.
        """
        return (
            self._bounds is None
            and self._checkpoint.index_timestamp > 0
            and self._index.last_physical_offset < 0
            and self._log.min_offset < dispatch_from
        )

    def cut(self, bound: int) -> None:
        """Remove index entries from the bound on; a damaged file is deleted and rebuilt."""
        is_trusted = self._checkpoint.has_bounds
        files = [file for file in self._index.files if not file.is_empty]
        for number, file in enumerate(files):
            if file.begin_physical_offset >= bound:
                self._index.remove(file)
            elif is_trusted and number + 1 < len(files) and files[number + 1].begin_physical_offset < bound:
                continue  # all of it is below the bound, so all of it is on the disk
            elif not file.cut(bound, is_trusted=is_trusted):
                self._before_rebuild()
                self.is_lost = True
                self.files_rebuilt += 1
                self._note(f"the index file {file.path} was damaged and is built again")
                for following in files[number:]:
                    if following in self._index.files:
                        self._index.remove(following)
                return

    def cut_past(self, log_end: int) -> None:
        """Drop the entries of records that the log lost, because other records will get their offsets."""
        for file in [file for file in self._index.files if file.end_physical_offset >= log_end]:
            if file.begin_physical_offset >= log_end or not file.cut(log_end, is_trusted=True):
                self._index.remove(file)

    @property
    def end(self) -> int:
        """The offset from which on records must be indexed."""
        if not self._index.is_enabled:
            return 1 << 62
        if self._index.last_physical_offset < 0:
            return self._log.min_offset
        return self._index.last_physical_offset + 1

    def add(self, record: DispatchRecord, properties: dict[str, str]) -> None:
        """Index the record's keys, and create a new index file when the present one is full."""
        texts = index_texts(properties)
        if not self._index.has_room(len(texts)):
            self._index.make_room(len(texts), record.store_timestamp)
        self._index.add(record.topic, texts, record.physical_offset, record.store_timestamp)
