"""Offsets of POP groups go back to the messages whose check points a cut of the log took off."""

from __future__ import annotations

import random

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import CK_TAG, CheckPoint
from aerobee.broker.replication.cut_pops import lowering_to_cut_pops
from aerobee.clock import ManualClock
from aerobee.message import encode_properties, encode_record, pack_host
from aerobee.simulation.simulated_disk import SimulatedDisk

START, DIRECTORY = 1_000, "/store/cut"
BLANK = (24).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(16)


def point(queue_id: int, start: int, group: str = "g") -> bytes:
    found = CheckPoint(
        topic="t", group=group, queue_id=queue_id, start_offset=start, offsets=(start, start + 1),
        pop_time=1, invisible_ms=60_000, broker_name="b",
    )  # fmt: skip
    return record(found.encode(), CK_TAG)


def record(body: bytes, tag: str = "") -> bytes:
    host = pack_host("127.0.0.1", 1)
    return encode_record(
        topic=b"rmq_sys_REVIVE_LOG_c", queue_id=0, queue_offset=0, physical_offset=0, body=body,
        properties=encode_properties({"TAGS": tag}).encode(), born_host=host, store_host=host,
    )  # fmt: skip


def lowered(files: dict[str, bytes], before: dict[int, int]) -> dict[int, int]:
    """Offsets of group g by queue after a cut at START that kept these files."""
    disk = SimulatedDisk(random.Random(1))
    disk.make_dirs(DIRECTORY)
    for name, data in files.items():
        disk.replace_file(f"{DIRECTORY}/{name}", data)
    offsets = ConsumerOffsets(clock=ManualClock())
    for queue_id, offset in before.items():
        offsets.commit("g", "t", queue_id, offset)
    for _ in lowering_to_cut_pops(offsets, disk, DIRECTORY, START):
        pass
    return offsets.queues_of("g", "t")


def named(at: int, data: bytes) -> dict[str, bytes]:
    return {f"{at:020d}-{len(data)}": data}


def test_an_offset_goes_back_to_the_lowest_start_of_its_check_points() -> None:
    data = point(0, 7) + record(b"a message") + point(0, 5) + point(1, 9) + point(2, 3)
    assert lowered(named(START, data), {0: 9, 1: 9, 2: 2, 3: 4}) == {0: 5, 1: 9, 2: 2, 3: 4}


@pytest.mark.parametrize("size", [1, 50, 90, 91, 200, 10_000])
def test_pieces_may_end_anywhere_in_a_record(size: int) -> None:
    data = point(0, 7) + point(1, 5)
    files: dict[str, bytes] = {}
    for at in range(0, len(data), size):
        files |= named(START + at, data[at : at + size])
    assert lowered(files, {0: 9, 1: 9}) == {0: 7, 1: 5}


def test_the_blank_at_the_end_of_a_log_file_is_passed_over() -> None:
    first = point(0, 7) + BLANK
    files = named(START, first) | named(START + len(first), point(1, 5))
    assert lowered(files, {0: 9, 1: 9}) == {0: 7, 1: 5}


def test_of_two_cuts_at_one_offset_the_later_one_counts() -> None:
    files = named(START, point(0, 1))
    files |= {f"{START:020d}-{len(point(0, 5))}-again": point(0, 5)}
    assert lowered(files, {0: 9}) == {0: 5}


def test_bytes_of_other_cuts_and_what_is_no_check_point_change_nothing() -> None:
    files = named(START - 100, point(0, 1)) | named(START, record(b"no json", CK_TAG) + b"\0" * 200)
    assert lowered(files, {0: 9}) == {0: 9}
    assert lowered({}, {0: 9}) == {0: 9}
