"""POP groups' offsets go back with the check points that a cut of the log took off.

A pop moves the group's offset past the messages that it hands out, and its check point gives back what is not acknowledged. When a
deposed master's log is cut, check points of its last pops go. Its offsets must not stay behind the messages of these pops: if it
leads again before it has copied its master's offsets, no broker would hand them out again. They are found in the bytes that the cut
kept (`cut/OFFSET-SIZE`, log_cut.py).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import CK_TAG, CheckPoint, decode_check_point
from aerobee.errors import MalformedFrame, MalformedRecord
from aerobee.message import RECORD_BYTES_MIN, Record, decode_record
from aerobee.store.files.disk import Disk

log = logging.getLogger(__name__)

STEP_RECORDS = 256  # some 3 ms


def lowering_to_cut_pops(
    offsets: ConsumerOffsets, disk: Disk, directory: str, log_offset: int
) -> Iterator[None]:
    """Set each group's offset to the lowest start of its check points that were cut off at `log_offset`, where it is behind one.

    `directory`: where cuts keep their bytes. Yields after some milliseconds of work. Raises OSError.
    """
    for number, record in enumerate(_records(disk, directory, log_offset)):
        if number % STEP_RECORDS == 0:
            yield
        if (point := _check_point(record)) is None:
            continue
        known = offsets.query(point.group, point.topic, point.queue_id)
        if known is not None and known > point.start_offset:
            offsets.commit(point.group, point.topic, point.queue_id, point.start_offset)
            log.warning(
                "group %s on %s queue %d goes back to %d: the check point of a pop there was cut off",
                *(point.group, point.topic, point.queue_id, point.start_offset),
            )


def _check_point(record: Record) -> CheckPoint | None:
    if record.tag != CK_TAG:
        return None
    try:
        return decode_check_point(record.body)
    except MalformedFrame:
        return None  # a message of some topic whose tag is the same word


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
    """The files of a cut in order: each begins where the one before it ends. Of several cuts at one offset the last."""
    if not disk.is_dir(directory):
        return
    names = set(disk.list_dir(directory))
    at = log_offset
    while found := [name for name in names if name.startswith(f"{at:020d}-")]:
        paths = [os.path.join(directory, name) for name in found]
        path = max(paths, key=lambda each: (disk.mtime_ms(each), each.count("-again")))
        yield path
        at += int(os.path.basename(path).split("-")[1])
