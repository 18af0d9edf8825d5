"""Recovers a store at start-up: decides what it keeps and truncates, and reports the reasons.

Follows CommitLog.recoverNormally and recoverAbnormally of RocketMQ, with these differences, for a broken record is
not always the end of the log:

- An unreadable record in the durable part is damage, not the result of a crash (`log_end.py`).
- Queue and index entries after the last durable bound are removed and rebuilt from the log, because a power loss may
  keep any subset of their pages. RocketMQ keeps entries that look valid.
- Bytes after the end of the log are zeroed, so that old bytes can never be mistaken for new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from aerobee.errors import StoreError
from aerobee.message import decode_properties
from aerobee.record_head import RECORD_BYTES_MIN
from aerobee.store.files.checkpoint import Checkpoint
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log.commit_log import BLANK_BYTES, CommitLog, segment_name
from aerobee.store.log.dispatch import DispatchRecord, Scan, ScanKind
from aerobee.store.log.log_scanner import LogScanner
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_bounds import QueueBound, QueueBounds, decode_queue_bounds, with_found
from aerobee.store.queue.queue_table import QueueTable
from aerobee.store.recovery.index_recovery import IndexRecovery
from aerobee.store.recovery.log_end import LogEnd
from aerobee.store.recovery.queue_rebuild import QueueRebuild
from aerobee.store.recovery.recovery_report import NOTES_MAX, RecoveryReport

# RocketMQ's safety margin: it trusts the log up to the checkpoint's times minus this
_TIMESTAMP_SLACK_MS = 3_000
# Number of log files after the known end within which an entry is plausible; further entries count as
# damaged.
_ENTRY_SLACK_FILES = 8
_INT64 = (1 << 64) - 1
# Recovery compares the queues of a store without recorded bounds (as RocketMQ leaves it) with the log, if the
# log is at most this large.
_ADOPT_BYTES_MAX = 4 << 30


class Recovery:
    """One run of recovery over the opened parts of a store. Blocking."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        checkpoint: Checkpoint,
        *,
        disk: Disk,
        was_clean: bool,
        before_rebuild: Callable[[], None],
        keep_bounds: Callable[[bytes, int, bool], None],
    ) -> None:
        """`before_rebuild` makes it durable that queues and index are not to be trusted, before any of them goes;
        `keep_bounds` puts other queue bounds into the checkpoint, and the log offset up to which queues may be trusted
        where that knows of none; its last argument says whether it must, and raises OSError."""
        self._keep_bounds = keep_bounds
        self._before_rebuild = before_rebuild
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._bounds = decode_queue_bounds(checkpoint.queue_bounds)
        self._dispatch_from = 0
        self._found: dict[tuple[str, int], QueueBound] = {}  # the queues, as this start found them
        self._found_end = 0  # end of the last record that they point to and whose offset stays used
        self.report = RecoveryReport(was_clean=was_clean)
        self._scanner = LogScanner(log, check_crc=config.check_crc_on_recover)
        self._rebuild = QueueRebuild(queues, self._scanner, self._bounds, self.report.notes.append)
        self._end = LogEnd(
            config,
            log,
            self._scanner,
            checkpoint,
            self._bounds,
            self.report,
            disk=disk,
            before_rebuild=before_rebuild,
            left_out=self._left_out,
        )
        self._keys = IndexRecovery(
            index,
            log,
            checkpoint,
            self._bounds,
            note=self.report.notes.append,
            before_rebuild=before_rebuild,
        )

    def run(self) -> RecoveryReport:
        """Settle the log's end, the queues and the index. Raises StoreError when acknowledged data is damaged."""
        try:
            return self._run()
        except (StoreError, OSError):
            # Entries may have been cut already: the next start is to know that their offsets were used.
            self._rebuild.forget_suspects()
            self._keep_found(must=False)
            raise

    def _keep_found(self, *, must: bool) -> None:
        """Record in the checkpoint the ends of the queues that this start found."""
        if not self._found or (self._bounds is None and (not self._log.segments or self.report.was_clean)):
            return
        bounds = self._bounds or QueueBounds(self._log.min_offset)
        if must and all(
            key in bounds.queues and found.max_offset <= bounds.queues[key].max_offset
            for key, found in self._found.items()
        ):
            return
        trusted = 0 if self._checks_all else self._dispatch_from
        self._keep_bounds(with_found(bounds, self._found, self._found_end).encode(), trusted, must)

    def _run(self) -> RecoveryReport:
        report, log = self.report, self._log
        report.log_min_offset = log.min_offset
        flushed = self._checkpoint.log_flushed
        if report.was_clean and flushed >= 0 and self._scanner.alone(flushed).record is not None:
            report.was_clean = False
            report.notes.append(
                f"the log continues behind {flushed}, where the checkpoint says it ended: this was no clean stop, although "
                f"{self._config.path('abort')} is missing"
            )
        self._judge_lost_tail()
        if not log.segments:
            self._settle_empty()
            return report
        self._judge_lost_beginning()
        dispatch_from = self._dispatch_from = self._dispatch_start()
        if self._config.truncate_corrupt_log:
            # Their offsets were used. After the entries are removed no other data shows the loss, so it is
            # recorded durably before.
            self._keep_found(must=True)
        if not report.was_clean:
            report.queue_entries_cut += self._queues.cut_records_from(dispatch_from, self._judge_rejected)
            self._keys.cut(dispatch_from)
        else:
            for queue in self._queues.queues.values():
                if isinstance(queue, ConsumeQueue):
                    self._judge_rejected(queue)
        start = report.scanned_from = self._scan_start(dispatch_from)
        checks = self._checks_all
        self._keys.judge(dispatch_from, checks_all=checks)
        report.index_files_rebuilt = self._keys.files_rebuilt
        index_from = self._keys.end
        self._look_behind(start, index_from, checks=checks)
        end = report.log_end = self._scan(start, start if checks else dispatch_from, index_from)
        report.bytes_cut = log.set_end(end, clear=self._end.cuts or not report.was_clean)
        if report.was_clean or end < dispatch_from:
            report.queue_entries_cut += self._cut_past(end)
            self._keys.cut_past(end)
        if report.bytes_cut:
            report.notes.append(
                f"{report.bytes_cut} bytes behind {self._scanner.location(end)} were not whole records and were cleared"
            )
        self._scanner.forget()
        self._rebuild.look(log.min_offset, end)
        if self._rebuild.wanted:
            self._before_rebuild()
            self._rebuild.run(log.min_offset, end)
        self._tell_shorter_queues()
        self._queues.remove_aside()
        self._queues.delete_before(log.min_offset)
        self._queues.expose_all()
        if report.last_record_offset < 0 and end > log.min_offset:
            self._find_last(end)
        self._tell_older_log()
        return report

    def _left_out(self, at: int, stop: int) -> None:
        """No record is in these bytes of the log any more."""
        self._queues.make_holes(at, stop)
        self._rebuild.tell_damage()

    # -- lost data

    def _judge_lost_tail(self) -> None:
        """Refuse when queue entries point after the end of the log although no page can have been lost.

        A power loss keeps any subset of the pages that were not synced, so an entry may be there without its record. If
        only the process died, all its writes are in the files; missing data was removed afterwards.
        """
        log, lost, whole = self._log, [], 0
        known = max(
            log.end, self._checkpoint.log_flushed, self._bounds.log_end if self._bounds is not None else 0
        )
        limit = known + _ENTRY_SLACK_FILES * log.segment_size if known else 1 << 62
        kept = self._end.has_kept_all
        for (topic, queue_id), queue in self._queues.queues.items():
            entry, number = queue.last_entry(), queue.max_offset - 1
            if entry is None or not 0 <= entry[0] < limit or entry[1] < RECORD_BYTES_MIN:
                continue
            self._found[topic, queue_id] = QueueBound(queue.is_batch, queue.first_position, queue.max_offset)
            if self._config.truncate_corrupt_log:
                self._found_end = max(self._found_end, entry[0] + entry[1])
            if not kept or entry[0] < self._checkpoint.log_flushed:
                continue
            if self._scanner.alone(entry[0]).record is not None:
                whole = max(whole, entry[0] + entry[1])
            elif queue.is_batch or not self._may_be_of((topic, queue_id), number, entry[0]):
                lost.append((entry[0], number, f"queue {queue_id} of {topic}"))
        self._end.reached(whole)
        if self._config.truncate_corrupt_log:
            self._rebuild.keep_ends({key: found.max_offset for key, found in self._found.items()})
            return
        lost = [each for each in lost if each[0] >= whole]
        if not lost:
            return
        offset, number, name = min(lost)
        segment = log.segment_at(offset)
        found = (
            f"at {self._scanner.location(offset)} no record is"
            if segment is not None
            else "the file is not there"
        )
        raise StoreError(
            f"the commit log lost its end: {len(lost)} queues point to messages from log byte {offset} on, as {name} does "
            f"with its message {number}, but {found}, and no power was lost since they were written: see "
            f"{os.path.join(log.directory, '')}. Restore the last file from a copy or a replica, or start once with "
            "truncateCorruptLog=true to continue without the messages that are gone",
            path=segment.path if segment is not None else log.directory,
            offset=offset,
        )

    def _tell_shorter_queues(self) -> None:
        """A power loss may take records of which queue entries are left: they were not durable, and are gone."""
        for key, (_, _, end) in self._found.items():
            queue = self._queues.queues.get(key)
            if queue is not None and queue.max_offset < end and len(self.report.notes) < NOTES_MAX:
                self.report.notes.append(
                    f"queue {key[0]} {key[1]} ended at {end} and ends at {queue.max_offset} now: the records of these "
                    f"messages are not in the log, which ends at {self._scanner.location(self.report.log_end)}"
                )

    def _tell_older_log(self) -> None:
        """RocketMQ's checkpoint says no offset. At a slave that truncated its log, it may contain times of removed
        records: no refusal."""
        known, newest = self._checkpoint.log_timestamp, self.report.last_store_timestamp
        if not self._checkpoint.has_bounds and known - _TIMESTAMP_SLACK_MS > newest:
            self.report.notes.append(
                f"the log's newest record is of {newest} ms, but RocketMQ's checkpoint says that records of {known} ms were on "
                f"the disk: files behind {self._scanner.location(self.report.log_end)} may be gone"
            )

    def _may_be_of(self, key: tuple[str, int], queue_offset: int, physical_offset: int) -> bool:
        """Whether the entry's record is where it points to, or where it would with one bit turned back."""
        offsets = (physical_offset, *((physical_offset & _INT64) ^ 1 << bit for bit in range(64)))
        return any(self._is_record_of(key, queue_offset, candidate) for candidate in offsets)

    def _judge_lost_beginning(self) -> None:
        """Retention deletes the oldest files and records this in the checkpoint; if files disappeared otherwise, the
        report states the loss."""
        bounds, log = self._bounds, self._log
        if self.report.was_clean and bounds is not None and bounds.log_min < log.min_offset:
            self.report.notes.append(
                f"the commit log began at {bounds.log_min} when it was closed, now at {log.min_offset}: the files before "
                f"{log.segments[0].path} are gone, and the messages in them"
            )

    @property
    def _checks_all(self) -> bool:
        """Whether every queue entry is compared with the log: because of the setting, or because nothing is known of the queues."""
        log_bytes = len(self._log.segments) * self._log.segment_size
        return self._config.check_queues_on_start or (self._bounds is None and log_bytes <= _ADOPT_BYTES_MAX)

    def _look_behind(self, start: int, index_from: int, *, checks: bool) -> None:
        """Add missing index entries, and with `checks` queue entries, for records before `start`."""
        log = self._log
        index_low = max(index_from - 1, log.min_offset) if self._keys.is_lost else start
        low = log.min_offset if checks else index_low
        if low >= start:
            return
        for record in self._scanner.records(low, start, self._tell_damage):
            at = record.physical_offset
            self._dispatch(record, for_queue=checks, for_index=self._keys.is_lost and at >= index_from)

    def _tell_damage(self, start: int, stop: int, reason: str) -> None:
        self.report.notes.append(
            f"the commit log is damaged at {self._scanner.location(start)} (log bytes {start} to {stop}): {reason}; what is "
            "behind it is served"
        )

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
        self._rebuild.look(0, 0)
        if self._rebuild.wanted:
            self._rebuild.run(0, 0)
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
            # The checkpoint is complete: earlier records without a queue belong to deleted topics, and a
            # queue that is missing since is detected by its bound.
            said = min(checkpoint.queues_flushed, log.end) if self._bounds is not None else 0
            return max(log.min_offset, covered, said)
        if checkpoint.has_bounds:
            return max(log.min_offset, min(checkpoint.queues_flushed, log.end))
        bound = min(checkpoint.log_timestamp, checkpoint.queues_timestamp) - _TIMESTAMP_SLACK_MS
        for segment in reversed(log.segments):
            first = self._scanner.at(segment.base)
            if first.record is not None and 0 < first.record.store_timestamp <= bound:
                return segment.base
        return log.min_offset

    def _scan_start(self, dispatch_from: int) -> int:
        """An offset at or before dispatch_from where a record is known to begin."""
        log = self._log
        if not self.report.was_clean:
            # The bound itself begins a record, or is the end of the log at that time. Data before the bound
            # is checked, too: the file may be missing or empty although it was on disk.
            return min(dispatch_from, self._last_flushed_record(dispatch_from))
        known = self._checkpoint.queues_physical_offset
        if log.min_offset < known <= dispatch_from and self._scanner.at(known).kind is ScanKind.RECORD:
            return known
        for segment in reversed(log.segments):
            if segment.base <= dispatch_from and self._scanner.at(segment.base).kind in (
                ScanKind.RECORD,
                ScanKind.BLANK,
            ):
                return segment.base
        return log.min_offset

    def _last_flushed_record(self, dispatch_from: int) -> int:
        """Offset of a record from which a scan reaches the last durable record according to the checkpoint. It is the
        record of the last queue entry that points into that log file, else the file's first record; the log's end when
        the file is missing.
        """
        log, flushed = self._log, self._checkpoint.log_flushed
        if flushed <= log.min_offset:
            return dispatch_from
        segment = log.segment_at(flushed - 1)
        if segment is None:
            return log.end
        pointed = segment.base
        for queue in self._queues.queues.values():
            entry = queue.last_entry()
            if entry is not None and pointed < entry[0] < min(dispatch_from, flushed):
                pointed = entry[0]
        return pointed if self._scanner.alone(pointed).kind is ScanKind.RECORD else segment.base

    # -- the scan

    def _scan(self, start: int, dispatch_from: int, index_from: int) -> int:
        """Walk the records from `start` and dispatch. Returns the log's end."""
        report, log = self.report, self._log
        index_start = start if self._keys.is_lost else dispatch_from
        at = start
        while (segment := log.segment_at(at)) is not None:
            scan = self._scanner.at(at)
            if scan.kind is ScanKind.BLANK:
                if scan.size == segment.end - at:
                    at = segment.end
                    continue
                scan = Scan(ScanKind.BAD, reason=f"a blank of {scan.size} bytes")
            if scan.record is None:
                following = self._end.judge(at, scan)
                if following is None:
                    return at
                at = following
                continue
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
        if at < self._end.durable:
            self._end.judge(at, Scan(ScanKind.END, reason=f"there is no file {segment_name(at)}"))
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
            self._keys.add(record, properties)

    def _dispatch_queue(self, record: DispatchRecord, properties: dict[str, str]) -> None:
        """Give the record its entry in its queue, or remember that the queue has to be built again."""
        report, outcome = self.report, self._queues.redispatch(record, properties)
        key = record.topic, record.queue_id
        queue = self._queues.any(*key) if outcome != "unnamed" else None
        if queue is not None and outcome == "other":
            entry = queue.entry(record.queue_offset)
            if entry is None or not self._is_record_of(key, record.queue_offset, entry[0]):
                self._queues.rewrite(record, properties)
                outcome = "mended"
            elif entry[0] < record.physical_offset and len(report.notes) < NOTES_MAX:
                report.notes.append(
                    f"the record at {self._scanner.location(record.physical_offset)} says that it is message "
                    f"{record.queue_offset} of queue {record.queue_id} of {record.topic}, which the record at {entry[0]} is: "
                    "it is left out of its queue"
                )
        if outcome in ("added", "began"):
            report.queue_entries_added += 1
        if outcome == "began" and self._dispatch_from > self._log.min_offset and not self._checks_all:
            # The queue now looks like one that begins here. If this start ends early, the next one must not
            # take it for such a queue.
            self._before_rebuild()
            self._rebuild.suspect(key, 0, "its files are gone")
        if outcome == "mended":
            report.queue_entries_mended += 1
            if report.queue_entries_mended <= NOTES_MAX:
                report.notes.append(
                    f"the entry {record.queue_offset} of queue {record.topic} {record.queue_id} did not "
                    f"match the record at {record.physical_offset} and was written again"
                )
        elif outcome == "gap" and queue is not None:
            lost = 0 if record.queue_offset < queue.min_offset else queue.max_offset
            self._rebuild.suspect(key, lost, f"message {record.queue_offset} of it is in the log")
        elif outcome == "unnamed" and len(report.notes) < NOTES_MAX:
            report.notes.append(
                f"the record at {record.physical_offset} names topic {record.topic[:80]!r}, queue {record.queue_id}, "
                "which cannot be a queue: it is served from no queue"
            )

    def _find_last(self, end: int) -> None:
        """The start and time of the last record, when the scan met none: walk the last file."""
        segment = self._log.segment_at(end - 1)
        while segment is not None:
            at = segment.base
            while at < min(end, segment.end):
                scan = self._scanner.at(at)
                if scan.record is None:
                    break
                self.report.last_record_offset = at
                self.report.last_store_timestamp = scan.record.store_timestamp
                at += scan.size
            if self.report.last_record_offset >= 0:
                return
            segment = self._log.segment_at(segment.base - 1)

    # -- queues

    def _cut_past(self, end: int) -> int:
        """Cut entries that point behind the log, which a clean stop never leaves: the log was cut by hand since, or a bit
        of the entry changed. The queue is rebuilt, which restores the entry if its record exists.
        """
        cut = 0
        for key, queue in self._queues.queues.items():
            if queue.max_physical_offset > end:
                self._before_rebuild()
                cut += queue.cut_records_from(end)
                self._rebuild.suspect(key, queue.max_offset, "entries pointed behind the log")
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
            candidate < bound and self._is_record_of(key, offset, candidate)
            for candidate in (pointed, *((pointed & _INT64) ^ 1 << bit for bit in range(64)))
        ):
            self._before_rebuild()
            self._rebuild.suspect(key, offset, f"its entry {offset} is damaged")

    def _is_record_of(self, key: tuple[str, int], queue_offset: int, physical_offset: int) -> bool:
        log = self._log
        if not log.min_offset <= physical_offset < log.end or self._scanner.is_far_from_record(
            physical_offset
        ):
            return False
        record = self._scanner.alone(physical_offset).record
        return record is not None and (record.topic, record.queue_id, record.queue_offset) == (
            *key,
            queue_offset,
        )
