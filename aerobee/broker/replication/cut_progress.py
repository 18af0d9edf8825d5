"""Lowers progress after a truncation of the log removed the records that it includes.

A pop moves the group's offset past the delivered messages, and its check point redelivers unacknowledged ones. A
delivery of a delay level moves the level past the delayed message. When a deposed master's log is truncated, its last
check points and deliveries are removed, and its progress must not stay past their messages: if it leads again before it
has copied its master's progress, no broker would deliver them. They are read from the bytes that the cut kept
(`cut/OFFSET-SIZE`, log_cut.py).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import CK_TAG, CheckPoint, decode_check_point
from aerobee.broker.replication.cut_revivals import CutRevivals
from aerobee.errors import MalformedFrame, MalformedRecord
from aerobee.message import Record, decode_record
from aerobee.record_head import RECORD_BYTES_MIN
from aerobee.store.files.disk import Disk
from aerobee.store.log.source_pointer import source_pointer
from aerobee.system_names import SCHEDULE_TOPIC

log = logging.getLogger(__name__)

STEP_RECORDS = 256  # some 3 ms


@dataclass(slots=True)
class CutProgress:
    """Lowers progress to the remaining log. `directory`: the files of cut bytes."""

    offsets: ConsumerOffsets
    levels: dict[int, int]  # delay level -> next queue offset to deliver
    revivals: CutRevivals
    read_record: Callable[[int], bytes | None]  # a record of the remaining log, by its physical offset
    disk: Disk
    directory: str

    def lowering(self, log_offset: int) -> Iterator[None]:
        """Lower group offsets, `levels` and revive queues to the first message whose check point, delivery or copy was cut off at `log_offset`.

        Yields after some milliseconds of work. Raises OSError, StoreError.
        """
        for number, record in enumerate(_records(self.disk, self.directory, log_offset)):
            if number % STEP_RECORDS == 0:
                yield
            if (point := _check_point(record)) is not None:
                self._hand_out_again(point)
                if record.topic == self.revivals.topic:
                    self.revivals.add_check_point(point)
            if (source := self._source(record, log_offset)) is not None:
                self._deliver_again(source)
                self.revivals.add(record, source)
        yield from self.revivals.lowering()

    def _source(self, record: Record, log_offset: int) -> Record | None:
        """The source record of a delivery or copy, if it remains."""
        source_offset = source_pointer(record.prepared_transaction_offset)  # its own inverse
        if not 0 <= source_offset < log_offset:
            return None
        data = self.read_record(source_offset)
        try:
            return None if data is None else decode_record(data, check_crc=False)
        except MalformedRecord:
            return None  # damaged, or no record begins there: a cut must complete nevertheless

    def _deliver_again(self, waited: Record) -> None:
        level = waited.queue_id + 1
        if waited.topic == SCHEDULE_TOPIC and self.levels.get(level, 0) > waited.queue_offset:
            self.levels[level] = waited.queue_offset

    def _hand_out_again(self, point: CheckPoint) -> None:
        offsets, start = self.offsets, point.start_offset
        known = offsets.query(point.group, point.topic, point.queue_id)
        if known is not None and known > start:
            offsets.commit(point.group, point.topic, point.queue_id, start)
            log.warning(
                "group %s on %s queue %d goes back to %d: the check point of a pop there was cut off",
                *(point.group, point.topic, point.queue_id, start),
            )


def _check_point(record: Record) -> CheckPoint | None:
    if record.tag != CK_TAG:
        return None
    try:
        return decode_check_point(record.body)
    except MalformedFrame:
        return None  # a user's message with the same tag


def _records(disk: Disk, directory: str, log_offset: int) -> Iterator[Record]:
    """The records of the newest cut at an offset, as far as they can be read. Pieces end anywhere in a record."""
    rest = b""
    for path in _pieces(disk, directory, log_offset):
        data = rest + disk.read_file(path)
        at = 0
        while at + RECORD_BYTES_MIN <= len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            if size > len(data) - at:
                break
            try:
                record = decode_record(data, at, check_crc=False)
            except MalformedRecord:
                break  # the blank at a file's end
            yield record
            at += record.total_size
        rest = data[at:]
        if rest[:4] == len(rest).to_bytes(4, "big"):
            rest = b""  # the blank at a file's end


def _pieces(disk: Disk, directory: str, log_offset: int) -> Iterator[str]:
    """The files of a cut in order: each begins where the one before it ends. The pieces of the last cut at an
    offset.
    """
    if not disk.is_dir(directory):
        return
    names = set(disk.list_dir(directory))
    at = log_offset
    while found := [name for name in names if name.startswith(f"{at:020d}-")]:
        paths = [os.path.join(directory, name) for name in found]
        path = max(paths, key=lambda each: (disk.mtime_ms(each), each.count("-again")))
        yield path
        size = int(os.path.basename(path).split("-")[1])
        if size <= 0:
            return
        at += size
