"""Opening a store: what is kept, what is cut, and the report that says why.

Follows CommitLog.recoverNormally and recoverAbnormally of RocketMQ, with these differences, for a broken record is
not always the end of the log:

- A record that cannot be read where durable data must be (below the checkpoint's bound, or with newer records behind
  it) is damage, not a crash: the store refuses to start and names the bytes, unless `truncateCorruptLog`.
- Queue and index entries behind the last bound known to be on the disk are cut and built again from the log, since a
  power loss keeps any subset of their pages. RocketMQ keeps what looks valid.
- What lies behind the end of the log becomes zero, so that old bytes can never be taken for new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aerobee.errors import StoreError
from aerobee.message import decode_properties
from aerobee.store.checkpoint import Checkpoint
from aerobee.store.commit_log import BLANK_BYTES, ZERO_RUN_BYTES_MAX, CommitLog
from aerobee.store.config import StoreConfig
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.disk import MappedFile
from aerobee.store.dispatch import DispatchRecord, Scan, ScanKind, index_texts, scan_record
from aerobee.store.index_file import KeyIndex
from aerobee.store.queue_table import QueueTable
from aerobee.store.zeros import is_zero

SECTOR_BYTES = 512
_SIZE_BYTES = 4  # a record begins with its size
_TIMESTAMP_SLACK_MS = 3_000  # RocketMQ's distance between the checkpoint's times and what it trusts
_READ_BYTES = 1 << 20
_NOTES_MAX = 1_000  # sentences about single records: a log may hold millions of one kind
_SEARCH_STEP_BYTES = 1 << 20
_INT64 = (1 << 64) - 1
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


@dataclass(slots=True)
class RecoveryReport:
    """What load() found and did. `notes` are sentences for the log, naming file and offset."""

    was_clean: bool
    log_min_offset: int = 0
    log_end: int = 0
    scanned_from: int = 0
    records_scanned: int = 0
    queue_entries_cut: int = 0
    queue_entries_added: int = 0
    queue_entries_mended: int = 0
    index_files_rebuilt: int = 0
    bytes_cut: int = 0  # bytes that were not zero behind the end of the log
    last_store_timestamp: int = 0
    last_record_offset: int = -1
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        end = "clean stop" if self.was_clean else "crash"
        return (
            f"opened after a {end}: log {self.log_min_offset}..{self.log_end}, {self.records_scanned} records "
            f"scanned from {self.scanned_from}, {self.bytes_cut} bytes cut; queue entries: "
            f"{self.queue_entries_cut} cut, {self.queue_entries_added} added, {self.queue_entries_mended} mended"
        )


class Recovery:
    """One run of recovery over opened but unsettled parts. Blocking."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        checkpoint: Checkpoint,
        *,
        was_clean: bool,
        before_rebuild: Callable[[], None],
    ) -> None:
        """`before_rebuild` makes it durable that queues and index are not to be trusted, before any of them goes."""
        self._before_rebuild = before_rebuild
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._gap_topics: set[tuple[str, int]] = set()
        self._dispatch_from = 0
        self._index_lost = False
        self._rebuilding = False
        self._window = b""  # a piece of the log, read ahead
        self._window_base = self._window_segment = 0
        self.report = RecoveryReport(was_clean=was_clean)

    def run(self) -> RecoveryReport:
        """Settle the log's end, the queues and the index. Raises StoreError when acknowledged data is damaged."""
        report, log = self.report, self._log
        report.log_min_offset = log.min_offset
        if not log.segments:
            self._settle_empty()
            return report
        dispatch_from = self._dispatch_from = self._dispatch_start()
        start = self._scan_start(dispatch_from)
        if not report.was_clean:
            report.queue_entries_cut += self._queues.cut_records_from(dispatch_from, self._judge_rejected)
            self._cut_index(dispatch_from)
        else:
            for queue in self._queues.queues.values():
                if isinstance(queue, ConsumeQueue):
                    self._judge_rejected(queue)
        index_from = self._index_end()
        if self._index_lost:
            start = min(start, max(index_from - 1, log.min_offset))
        report.scanned_from = start
        end = self._scan(start, dispatch_from, index_from)
        report.log_end = end
        if report.was_clean:
            log.set_end(end, clear=False)
        else:
            report.bytes_cut = log.set_end(end, clear=True)
        if report.was_clean:
            report.queue_entries_cut += self._cut_past(end)
        if report.bytes_cut:
            report.notes.append(
                f"{report.bytes_cut} bytes behind {self._place(end)} were not whole records and were cleared"
            )
        if self._gap_topics:
            self._rebuild_queues()
        self._queues.delete_before(log.min_offset)
        self._queues.expose_all()
        if report.last_record_offset < 0 and end > log.min_offset:
            self._find_last(end)
        return report

    # -- where to begin

    def _settle_empty(self) -> None:
        durable = self._checkpoint.log_flushed
        if durable > 0 and not self._config.truncate_corrupt_log:
            raise StoreError(
                f"there is no commit log file in {self._log.directory}, but the checkpoint says that the log is "
                f"durable up to {durable}: restore the files from a replica or a copy, or start once with "
                "truncateCorruptLog=true to begin with an empty log",
                path=self._log.directory,
                offset=0,
            )
        cut = self._queues.cut_records_from(0)
        for queue in self._queues.queues.values():
            queue.clear()
        for file in list(self._index.files):
            self._index.remove(file)
        if cut:
            self.report.notes.append(
                f"there is no commit log file in {self._log.directory}: {cut} queue entries that pointed into it "
                "were removed"
            )
            self.report.queue_entries_cut += cut

    def _dispatch_start(self) -> int:
        """Records from here on get their queue and index entries (again)."""
        checkpoint, log = self._checkpoint, self._log
        if self.report.was_clean:
            covered = max(
                (queue.max_physical_offset for queue in self._queues.queues.values()), default=log.min_offset
            )
            return max(log.min_offset, covered)
        if checkpoint.has_bounds:
            return max(log.min_offset, checkpoint.queues_flushed)
        bound = min(checkpoint.log_timestamp, checkpoint.queues_timestamp) - _TIMESTAMP_SLACK_MS
        for segment in reversed(log.segments):
            first = self._scan_at(segment.base)
            if first.record is not None and 0 < first.record.store_timestamp <= bound:
                return segment.base
        return log.min_offset

    def _scan_start(self, dispatch_from: int) -> int:
        """A place at or before dispatch_from where a record is known to begin."""
        log = self._log
        if not self.report.was_clean:
            # The bound itself begins a record, or is the end of the log at that time.
            return dispatch_from
        known = self._checkpoint.queues_physical_offset
        if log.min_offset < known <= dispatch_from and self._scan_at(known).kind is ScanKind.RECORD:
            return known
        for segment in reversed(log.segments):
            if segment.base <= dispatch_from and self._scan_at(segment.base).kind in (
                ScanKind.RECORD,
                ScanKind.BLANK,
            ):
                return segment.base
        return log.min_offset

    # -- the scan

    def _scan_at(self, offset: int) -> Scan:
        return scan_record(self._bytes_at(offset), offset, check_crc=self._config.check_crc_on_recover)

    def _bytes_at(self, offset: int) -> bytes:
        """The bytes from `offset` to the end of the record that they claim to be, or of the file."""
        segment = self._log.segment_at(offset)
        if segment is None:
            return b""
        at = offset - self._window_base
        if not 0 <= at <= len(self._window) - 8 or self._window_segment != segment.base:
            stop = min(segment.size, offset - segment.base + _READ_BYTES)
            self._window = segment.file.read(offset - segment.base, stop)
            self._window_base, self._window_segment, at = offset, segment.base, 0
        size = max(8, int.from_bytes(self._window[at : at + 4], "big"))
        if at + size > len(self._window):
            return segment.file.read(
                offset - segment.base, min(segment.size, offset - segment.base + min(size, segment.size))
            )
        return self._window[at : at + size]

    def _scan(self, start: int, dispatch_from: int, index_from: int) -> int:
        """Walk the records from `start` and dispatch. Returns the log's end."""
        report, log = self.report, self._log
        index_start = log.min_offset if self._index_lost else dispatch_from
        at = start
        while (segment := log.segment_at(at)) is not None:
            scan = self._scan_at(at)
            if scan.kind is ScanKind.BLANK:
                if scan.size != segment.end - at:
                    self._judge_end(at, Scan(ScanKind.BAD, reason=f"a blank of {scan.size} bytes"))
                    return at
                at = segment.end
                continue
            if scan.record is None:
                self._judge_end(at, scan)
                return at
            record = scan.record
            report.records_scanned += 1
            report.last_store_timestamp = record.store_timestamp
            report.last_record_offset = at
            self._dispatch(
                record, for_queue=at >= dispatch_from, for_index=at >= max(index_from, index_start)
            )
            at += scan.size
            if at + BLANK_BYTES > segment.end:
                at = segment.end
        if at < self._checkpoint.log_flushed:
            self._judge_end(at, Scan(ScanKind.END))
        return at

    def _dispatch(self, record: DispatchRecord, *, for_queue: bool, for_index: bool) -> None:
        if not (for_queue or for_index):
            return
        properties = decode_properties(record.properties)
        if for_queue and record.has_queue_entry:
            self._dispatch_queue(record, properties)
            for light in self._queues.light_records(record, properties):
                self._dispatch_queue(light, properties)
        if for_index and record.is_indexed:
            texts = index_texts(properties)
            if not self._index.has_room(len(texts)):
                self._index.make_room(len(texts), record.store_timestamp)
            self._index.add(record.topic, texts, record.physical_offset, record.store_timestamp)

    def _dispatch_queue(self, record: DispatchRecord, properties: dict[str, str]) -> None:
        """Give the record its entry in its queue, or remember that the queue has to be built again."""
        report, outcome = self.report, self._queues.redispatch(record, properties)
        if outcome == "added":
            report.queue_entries_added += 1
        elif outcome == "mended":
            report.queue_entries_mended += 1
            report.notes.append(
                f"the entry {record.queue_offset} of queue {record.topic} {record.queue_id} did not "
                f"match the record at {record.physical_offset} and was written again"
            )
        elif outcome == "gap" and not self._rebuilding:
            self._gap_topics.add((record.topic, record.queue_id))
        elif outcome in ("gap", "damaged"):
            self._refuse_record(record)
        elif outcome == "unnamed" and len(self.report.notes) < _NOTES_MAX:
            self.report.notes.append(
                f"the record at {record.physical_offset} names topic {record.topic[:80]!r}, queue {record.queue_id}, "
                "which cannot be a queue: it is served from no queue"
            )

    def _refuse_record(self, record: DispatchRecord) -> None:
        at = record.physical_offset
        queue = self._queues.any(record.topic, record.queue_id)
        text = (
            f"the record at {self._place(at)} (log bytes {at} to {at + record.size}) says that it is message "
            f"{record.queue_offset} of queue {record.queue_id} of {record.topic}, but {queue.max_offset} is next there"
        )
        if not self._config.truncate_corrupt_log:
            raise StoreError(
                f"the commit log is damaged: {text}. Restore the file from a replica or a copy, or start once with "
                "truncateCorruptLog=true to leave the message out of its queue",
                path=self._segment_path(at),
                offset=at,
            )
        self.report.notes.append(f"left out of its queue because truncateCorruptLog is set: {text}")

    def _judge_end(self, at: int, scan: Scan) -> None:
        """Nothing readable stands at `at`. Say why, or refuse when that cannot be the end of the log."""
        report = self.report
        is_end = scan.kind is ScanKind.END and report.was_clean
        later = None if is_end else self._newer_record_behind(at)
        # A record whose parts fit its size has that size on the disk: its zeros are no sign of a sector that is not.
        unread = at + _SIZE_BYTES if scan.size else at
        durable = self._checkpoint.log_flushed
        reason = scan.reason or "nothing is there"
        damage = ""
        if at < durable:
            damage = f"the log is known to be durable up to {durable}"
        elif later is not None and not self._is_lost_write(at, unread, later.physical_offset):
            if self._checkpoint.has_bounds or later.store_timestamp < self._checkpoint.log_timestamp:
                damage = f"a newer record stands behind it at {later.physical_offset}"
        elif (
            self._checkpoint.has_bounds
            and scan.kind is ScanKind.BAD
            and not self._is_lost_write(at, unread, None)
        ):
            damage = "the bytes are neither a record nor what a power loss leaves behind"
        if damage and not self._config.truncate_corrupt_log:
            stop = later.physical_offset if later is not None else max(durable, at + 1)
            raise StoreError(
                f"the commit log is damaged at {self._place(at)} (log bytes {at} to {stop}): {reason}, but "
                f"{damage}. Acknowledged messages are lost from there on. Restore the file from a replica or a copy, or "
                f"start once with truncateCorruptLog=true to go on without everything behind {at}",
                path=self._segment_path(at),
                offset=at,
            )
        if damage:
            report.notes.append(
                f"cut the damaged log at {self._place(at)} because truncateCorruptLog is set: {reason}, but {damage}"
            )
        elif scan.kind is not ScanKind.END:
            report.notes.append(f"the log ends at {self._place(at)}: {reason}")
        elif later is not None:
            report.notes.append(
                f"the log ends at {self._place(at)}: zeros; records behind it, from {later.physical_offset} on, were "
                "never acknowledged as durable and are cut"
            )

    def _is_lost_write(self, start: int, unread: int, stop: int | None) -> bool:
        """Whether a disk sector's share of [unread, stop) was never written: a power loss, not damage.

        `stop` None: to the end that the record at `start` claims.
        """
        segment = self._log.segment_at(start)
        if segment is None:
            return True
        file, at = segment.file, start - segment.base
        if stop is None:
            size = int.from_bytes(file.peek(at, at + 4), "big")
            last = at + (size if 0 < size <= segment.size - at else 4)
        else:
            last = stop - segment.base
        last = min(last, segment.size)
        at = unread - segment.base
        while at < last:
            end = min(last, at + SECTOR_BYTES - at % SECTOR_BYTES)
            # Also when only the first bytes of a size field are in question: they may be zero by themselves, but
            # refusing to start after an ordinary power loss would be worse.
            if is_zero(file.peek(at, end)):
                return True
            at = end
        return False

    def _newer_record_behind(self, at: int) -> DispatchRecord | None:
        """The first whole record behind `at`, in this file or the next, that is not older than what was scanned."""
        segment = self._log.segment_at(at)
        if segment is None:
            return None
        newest = self.report.last_store_timestamp
        following = self._log.segment_at(segment.end)
        for place in _magic_places(segment.file, at - segment.base + 1, segment.size):
            offset = segment.base + place - 4
            if offset > at:
                found = self._scan_at(offset).record
                if found is not None and found.store_timestamp >= newest:
                    return found
        if following is not None:
            found = self._scan_at(following.base).record
            if found is not None and found.store_timestamp >= newest:
                return found
        return None

    def _find_last(self, end: int) -> None:
        """The start and time of the last record, when the scan met none: walk the last file."""
        segment = self._log.segment_at(end - 1)
        while segment is not None:
            at = segment.base
            while at < min(end, segment.end):
                scan = self._scan_at(at)
                if scan.record is None:
                    break
                self.report.last_record_offset = at
                self.report.last_store_timestamp = scan.record.store_timestamp
                at += scan.size
            if self.report.last_record_offset >= 0:
                return
            segment = self._log.segment_at(segment.base - 1)

    # -- queues and index

    def _cut_past(self, end: int) -> int:
        """Cut entries that point behind the log, which a clean stop never leaves: somebody cut the log since, or a bit
        of the entry changed. The queue is built again, so that the entry comes back if its record is there.
        """
        cut = 0
        for key, queue in self._queues.queues.items():
            if queue.max_physical_offset > end:
                self._before_rebuild()
                cut += queue.cut_records_from(end)
                self._gap_topics.add(key)
        return cut

    def _judge_rejected(self, queue: ConsumeQueue) -> None:
        """A queue is about to end at an entry that is not empty: is that an entry of which a bit changed?

        Entries have no checksum. But this one belongs to the record of its queue offset, and that record stands where the
        entry points to when one of its bits is turned back. Then the queue is built again from the log.
        """
        if queue.rejected is None:
            return
        key, bound = (queue.topic, queue.queue_id), self._dispatch_from
        offset, pointed = queue.rejected
        if pointed >= bound and not self.report.was_clean and self._is_record_of(key, offset, pointed):
            return  # it is cut, and written again from the log
        if any(
            place < bound and self._is_record_of(key, offset, place)
            for place in (pointed, *((pointed & _INT64) ^ 1 << bit for bit in range(64)))
        ):
            self._before_rebuild()
            self._gap_topics.add(key)

    def _is_record_of(self, key: tuple[str, int], queue_offset: int, physical_offset: int) -> bool:
        log = self._log
        if not log.min_offset <= physical_offset < log.end or self._is_far_from_record(physical_offset):
            return False
        record = self._scan_at(physical_offset).record
        return record is not None and (record.topic, record.queue_id, record.queue_offset) == (
            *key,
            queue_offset,
        )

    def _is_far_from_record(self, physical_offset: int) -> bool:
        """Whether no record can stand there, by its magic alone: the whole look costs a read of the disk."""
        segment = self._log.segment_at(physical_offset)
        if segment is None:
            return True
        at = physical_offset - segment.base
        return segment.file.peek(at, min(segment.size, at + 8))[4:] not in _MAGICS

    def _rebuild_queues(self) -> None:
        """Build queues with missing entries again from the whole log."""
        self._before_rebuild()
        wanted, self._gap_topics = self._gap_topics, set()
        self._rebuilding = True
        for topic, queue_id in sorted(wanted):
            queue = self._queues.any(topic, queue_id)
            queue.clear()
            self.report.notes.append(
                f"queue {topic} {queue_id} had lost entries and was built again from the log"
            )
        for record in self._records(self._log.min_offset, self._log.end):
            if not record.has_queue_entry:
                continue
            properties = decode_properties(record.properties)
            if (record.topic, record.queue_id) in wanted:
                self._dispatch_queue(record, properties)
            for light in self._queues.light_records(record, properties):
                if (light.topic, light.queue_id) in wanted:
                    self._dispatch_queue(light, properties)

    def _records(self, start: int, end: int) -> Iterator[DispatchRecord]:
        at = start
        while at < end and (segment := self._log.segment_at(at)) is not None:
            scan = self._scan_at(at)
            if scan.kind is ScanKind.BLANK:
                at = segment.end
            elif scan.record is None:
                raise StoreError(
                    f"the commit log is damaged at {self._place(at)}: {scan.reason or 'zeros'}, inside "
                    "what has been read before; restore the file from a replica or a copy",
                    path=self._segment_path(at),
                    offset=at,
                )
            else:
                yield scan.record
                at += scan.size

    def _cut_index(self, bound: int) -> None:
        """Drop index entries from the bound on; a damaged file goes, and what it held is built again."""
        is_trusted = self._checkpoint.has_bounds
        files = [file for file in self._index.files if not file.is_empty]
        for number, file in enumerate(files):
            if file.begin_physical_offset >= bound:
                self._index.remove(file)
            elif is_trusted and number + 1 < len(files) and files[number + 1].begin_physical_offset < bound:
                continue  # all of it is below the bound, so all of it is on the disk
            elif not file.cut(bound, is_trusted=is_trusted):
                self._before_rebuild()
                self._index_lost = True
                self.report.index_files_rebuilt += 1
                self.report.notes.append(f"the index file {file.path} was damaged and is built again")
                for later in files[number:]:
                    if later in self._index.files:
                        self._index.remove(later)
                return

    def _index_end(self) -> int:
        """Records from here on are to be indexed."""
        if not self._index.is_enabled:
            return 1 << 62
        if self._index.last_physical_offset < 0:
            return self._log.min_offset
        return self._index.last_physical_offset + 1

    def _place(self, offset: int) -> str:
        segment = self._log.segment_at(offset)
        if segment is None:
            return f"offset {offset}"
        return f"byte {offset - segment.base} of {segment.path}"

    def _segment_path(self, offset: int) -> str:
        segment = self._log.segment_at(offset)
        return segment.path if segment is not None else os.path.join(self._log.directory, "")


def _magic_places(file: MappedFile, start: int, stop: int) -> Iterator[int]:
    """Positions of record magics in a mapped file, in order."""
    at = zeros_from = start
    while at < stop and at - zeros_from <= ZERO_RUN_BYTES_MAX:
        part = file.peek(at, min(stop, at + _SEARCH_STEP_BYTES + 3))
        if not is_zero(part):
            zeros_from = at + _SEARCH_STEP_BYTES
            hits = []
            for magic in _MAGICS:
                found = part.find(magic)
                while 0 <= found < _SEARCH_STEP_BYTES:
                    hits.append(at + found)
                    found = part.find(magic, found + 1)
            yield from sorted(hits)
        at += _SEARCH_STEP_BYTES
