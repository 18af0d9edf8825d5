"""Offsets of POP groups and delay levels go back to the messages whose check points and deliveries a cut of the log took off."""

from __future__ import annotations

import random

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import CK_TAG, CheckPoint
from aerobee.broker.replication.cut_progress import CutProgress
from aerobee.clock import ManualClock
from aerobee.message import encode_properties, encode_record, pack_host
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.log.delivery_mark import delivery_mark
from aerobee.store.log.dispatch import SCHEDULE_TOPIC

START, DIRECTORY = 1_000, "/store/cut"
BLANK = (24).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(16)


def point(queue_id: int, start: int, group: str = "g") -> bytes:
    found = CheckPoint(
        topic="t", group=group, queue_id=queue_id, start_offset=start, offsets=(start, start + 1),
        pop_time=1, invisible_ms=60_000, broker_name="b",
    )  # fmt: skip
    return record(found.encode(), CK_TAG)


def record(
    body: bytes,
    tag: str = "",
    *,
    topic: str = "rmq_sys_REVIVE_LOG_c",
    queue_id: int = 0,
    queue_offset: int = 0,
    transaction_offset: int = 0,
) -> bytes:
    host = pack_host("127.0.0.1", 1)
    return encode_record(
        topic=topic.encode(), queue_id=queue_id, queue_offset=queue_offset, physical_offset=0, body=body,
        properties=encode_properties({"TAGS": tag}).encode(), born_host=host, store_host=host,
        prepared_transaction_offset=transaction_offset,
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
    progress = CutProgress(
        offsets=offsets, levels={}, read_record=lambda _: None, disk=disk, directory=DIRECTORY
    )
    for _ in progress.lowering(START):
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


def test_of_two_cuts_at_one_offset_the_last_one_counts() -> None:
    files = named(START, point(0, 1))
    files |= {f"{START:020d}-{len(point(0, 5))}-again": point(0, 5)}
    assert lowered(files, {0: 9}) == {0: 5}


def test_bytes_of_other_cuts_and_what_is_no_check_point_change_nothing() -> None:
    files = named(START - 100, point(0, 1)) | named(START, record(b"no json", CK_TAG) + b"\0" * 200)
    assert lowered(files, {0: 9}) == {0: 9}
    assert lowered({}, {0: 9}) == {0: 9}


def test_a_level_goes_back_to_the_first_message_whose_delivery_was_cut_off() -> None:
    waiting = {
        100: record(b"x", topic=SCHEDULE_TOPIC, queue_id=2, queue_offset=4),
        200: record(b"x", topic=SCHEDULE_TOPIC, queue_id=2, queue_offset=3),
        300: record(b"x", topic=SCHEDULE_TOPIC, queue_id=5, queue_offset=9),
        400: record(b"x", topic="rmq_sys_wheel_timer", queue_id=2, queue_offset=0),
        600: bytes(100),
    }
    sources = (100, 200, 300, 400, 600, 500, START + 8)  # of the last two nothing is in the log that is left
    data = b"".join(record(b"x", topic="t", transaction_offset=delivery_mark(source)) for source in sources)
    disk = SimulatedDisk(random.Random(1))
    disk.make_dirs(DIRECTORY)
    disk.replace_file(f"{DIRECTORY}/{START:020d}-{len(data)}", data)
    levels = {3: 6, 6: 9, 7: 1}
    progress = CutProgress(
        offsets=ConsumerOffsets(clock=ManualClock()),
        levels=levels,
        read_record=waiting.get,
        disk=disk,
        directory=DIRECTORY,
    )
    for _ in progress.lowering(START):
        pass
    assert levels == {3: 3, 6: 9, 7: 1}
