"""Splits bytes of another broker's log into records. A core."""

from __future__ import annotations

from typing import NamedTuple

from aerobee.errors import RecordInvalid
from aerobee.message import decode_properties
from aerobee.store.log.dispatch import DispatchRecord, ScanKind, scan_record

RECORD_BYTES_MAX = (
    64 << 20
)  # whatever maxMessageSize is, here or at a master; a blank is never larger than a record
WORD_BYTES = 8  # size and magic, which a blank has, too


class RawRun(NamedTuple):
    """Whole records of a range of log bytes, with their properties, in order. `fills_file`: the range ends with a
    blank.
    """

    records: list[tuple[DispatchRecord, dict[str, str]]]
    end: int  # physical offset behind the bytes
    fills_file: bool

    @property
    def last_store_timestamp(self) -> int:
        """Of the newest record, ms; 0 without records."""
        return self.records[-1][0].store_timestamp if self.records else 0


def cut_raw(data: bytes, physical_offset: int, *, check_crc: bool) -> RawRun:
    """Cut whole records, behind them perhaps one blank that goes to the end of `data`.

    Raises RecordInvalid for anything else, naming the physical offset.
    """
    records: list[tuple[DispatchRecord, dict[str, str]]] = []
    at, end = 0, len(data)
    while at < end:
        record_offset = physical_offset + at
        size = int.from_bytes(data[at : at + 4], "big")
        if not WORD_BYTES <= size <= end - at:
            raise RecordInvalid(f"the size field at {record_offset} says {size}, {end - at} bytes are left")
        scan = scan_record(data[at : at + size], record_offset, check_crc=check_crc)
        if scan.kind is ScanKind.BLANK and at + size == end:
            return RawRun(records, physical_offset + end, True)
        if scan.record is None:
            raise RecordInvalid(f"no record at {record_offset}: {scan.reason or scan.kind.name.lower()}")
        records.append((scan.record, decode_properties(scan.record.properties)))
        at += size
    return RawRun(records, physical_offset + end, False)
