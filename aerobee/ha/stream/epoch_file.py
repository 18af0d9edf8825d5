"""The epochs of a log: which master wrote which range of it, and where two logs diverge. Core.

The file `epochFileCheckpoint` (source EpochFileCache, EpochEntry of RocketMQ) is text:

    count \\n crc \\n then a line EPOCH-START for each epoch, oldest first

The crc is crc32 of those lines with their ends, without its highest bit; 0 means not checked. An epoch ends where the next
one starts, the last one at the log's end. Epochs and starts only grow.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aerobee.errors import MalformedFrame

FILE_BYTES_MAX = 1 << 20
_LINE = re.compile(r"(\d{1,10})-(\d{1,19})")
_NUMBER = re.compile(r"\d{1,10}")


class EpochEntry(NamedTuple):
    """One mastership: its epoch, and the physical offset of its first byte, written or not."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class CommonPoint:
    """Two logs are the same up to `offset`, which lies in `epoch`."""

    epoch: int
    offset: int


def check_entries(entries: Sequence[EpochEntry]) -> None:
    """Raises MalformedFrame unless epochs grow and starts do not go back."""
    last: EpochEntry | None = None
    for entry in entries:
        if entry.epoch < 0 or entry.start_offset < 0:
            raise MalformedFrame(f"epoch {entry.epoch} starts at {entry.start_offset}")
        if last is not None and (entry.epoch <= last.epoch or entry.start_offset < last.start_offset):
            raise MalformedFrame(
                f"epoch {entry.epoch} from {entry.start_offset} follows epoch {last.epoch} from {last.start_offset}"
            )
        last = entry


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """The whole file."""
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in entries).encode()
    crc = zlib.crc32(lines) & 0x7FFF_FFFF
    return b"%d\n%d\n" % (len(entries), crc) + lines


def decode_epochs(data: bytes) -> tuple[EpochEntry, ...]:
    """Read the whole file. Raises MalformedFrame when it is damaged; the one before it is in the file's `.bak`."""
    if len(data) > FILE_BYTES_MAX:
        raise MalformedFrame(f"a file of epochs has {len(data)} bytes, {FILE_BYTES_MAX} are allowed")
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise MalformedFrame("a file of epochs is no text") from error
    if len(lines) < 2 or not _NUMBER.fullmatch(lines[0]) or not _NUMBER.fullmatch(lines[1]):
        raise MalformedFrame("a file of epochs does not begin with a count and a checksum")
    rows = lines[2:]
    if len(rows) != int(lines[0]):
        raise MalformedFrame(f"a file of {int(lines[0])} epochs has {len(rows)} lines for them")
    found = [_LINE.fullmatch(row) for row in rows]
    entries = tuple(EpochEntry(int(each[1]), int(each[2])) for each in found if each is not None)
    if len(entries) != len(rows):
        raise MalformedFrame("a line of a file of epochs is not EPOCH-START")
    crc = zlib.crc32("".join(f"{row}\n" for row in rows).encode()) & 0x7FFF_FFFF
    if int(lines[1]) not in (0, crc):
        raise MalformedFrame(f"the checksum of a file of epochs is {int(lines[1])}, expected {crc}")
    check_entries(entries)
    return entries


def end_offset(entries: Sequence[EpochEntry], position: int, max_offset: int) -> int:
    """End of the epoch at `position` in a log that ends at `max_offset`."""
    return entries[position + 1].start_offset if position + 1 < len(entries) else max_offset


def common_point(
    local: Sequence[EpochEntry],
    local_max_offset: int,
    master: Sequence[EpochEntry],
    master_max_offset: int,
) -> CommonPoint | None:
    """The offset up to which a slave's log equals the master's; None when they share no epoch.

    One master wrote the newest epoch that begins at the same byte in both logs, so that epoch is equal in both up to
    the end of the shorter one. Everything behind it in the slave's log must be cut off. Source
    AutoSwitchHAClient.doTruncate.
    """
    starts = {entry: position for position, entry in enumerate(master)}
    for position in range(len(local) - 1, -1, -1):
        at_master = starts.get(local[position])
        if at_master is not None:
            return CommonPoint(
                local[position].epoch,
                min(
                    end_offset(local, position, local_max_offset),
                    end_offset(master, at_master, master_max_offset),
                ),
            )
    return None


def parted_at_first_byte(local: Sequence[EpochEntry], master: Sequence[EpochEntry]) -> bool:
    """Whether both logs are known from byte 0 on, and different masters wrote it: they share nothing."""
    if not local or not master:
        return False
    return local[0].start_offset == master[0].start_offset == 0 and local[0].epoch != master[0].epoch


def cut_epochs(entries: Sequence[EpochEntry], point: CommonPoint) -> tuple[EpochEntry, ...]:
    """The epochs of a log that was cut at `point`: none behind its epoch."""
    return tuple(entry for entry in entries if entry.epoch <= point.epoch)


def append_epoch(entries: Sequence[EpochEntry], epoch: int, start_offset: int) -> tuple[EpochEntry, ...]:
    """The epochs once a new master begins at the log's end. Raises MalformedFrame when they would go back."""
    appended = (*entries, EpochEntry(epoch, start_offset))
    check_entries(appended)
    return appended


def without_deleted(entries: Sequence[EpochEntry], min_offset: int) -> tuple[EpochEntry, ...]:
    """The epochs of a log whose bytes before `min_offset` were deleted: those that have a byte left, and the last one."""
    return tuple(
        entry
        for position, entry in enumerate(entries)
        if position == len(entries) - 1 or entries[position + 1].start_offset > min_offset
    )
