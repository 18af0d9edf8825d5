"""Offsets of POP groups and delay levels go back to the messages whose check points and deliveries a cut of the log took off."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import CK_TAG, CheckPoint
from aerobee.broker.replication.cut_progress import CutProgress
from aerobee.broker.replication.cut_revivals import CutRevivals
from aerobee.clock import ManualClock
from aerobee.message import encode_properties, encode_record, pack_host
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.log.source_pointer import source_pointer
from aerobee.store.log.stored_message import GetResult, GetStatus
from aerobee.system_names import REVIVE_GROUP, SCHEDULE_TOPIC

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_c"
START, DIRECTORY = 1_000, "/store/cut"
BLANK = (24).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(16)


@dataclass
class LeftLog:
    """What a cut left: records of the revive queues, and records by their physical offset."""

    revive: dict[int, list[bytes]] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)

    def get_messages(self, topic: str, queue_id: int, offset: int, *, count_max: int) -> GetResult:
        assert topic == REVIVE_TOPIC
        found = self.revive.get(queue_id, [])[offset : offset + min(count_max, 7)]
        return GetResult(GetStatus.FOUND, offset + len(found), 0, 0, b"".join(found))

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.revive.get(queue_id, []))

    def read_record(self, offset: int, /) -> bytes | None:
        return self.records.get(offset)


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
        offsets=offsets,
        levels={},
        revivals=CutRevivals(LeftLog(), offsets, REVIVE_TOPIC),
        read_record=lambda _: None,
        disk=disk,
        directory=DIRECTORY,
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
    data = b"".join(record(b"x", topic="t", transaction_offset=source_pointer(source)) for source in sources)
    disk = SimulatedDisk(random.Random(1))
    disk.make_dirs(DIRECTORY)
    disk.replace_file(f"{DIRECTORY}/{START:020d}-{len(data)}", data)
    levels = {3: 6, 6: 9, 7: 1}
    progress = CutProgress(
        offsets=ConsumerOffsets(clock=ManualClock()),
        levels=levels,
        revivals=CutRevivals(LeftLog(), ConsumerOffsets(clock=ManualClock()), REVIVE_TOPIC),
        read_record=waiting.get,
        disk=disk,
        directory=DIRECTORY,
    )
    for _ in progress.lowering(START):
        pass
    assert levels == {3: 3, 6: 9, 7: 1}


def check_point(offset: int, message: int, topic: str = "t", group: str = "g") -> bytes:
    """A record of the revive topic at queue offset `offset`: the message at an offset of queue 3 was handed out."""
    found = CheckPoint(
        topic=topic, group=group, queue_id=3, start_offset=message, offsets=(message,),
        pop_time=offset, invisible_ms=60_000, broker_name="b",
    )  # fmt: skip
    return record(found.encode(), CK_TAG, topic=REVIVE_TOPIC, queue_offset=offset)


def settled(left: LeftLog, before: dict[int, int], cut_off: bytes = b"") -> dict[int, int]:
    """Offsets of the revive group by queue after a cut at START that took `cut_off`."""
    disk = SimulatedDisk(random.Random(1))
    disk.make_dirs(DIRECTORY)
    disk.replace_file(f"{DIRECTORY}/{START:020d}-{len(cut_off)}", cut_off)
    offsets = ConsumerOffsets(clock=ManualClock())
    for queue_id, offset in before.items():
        offsets.commit(REVIVE_GROUP, REVIVE_TOPIC, queue_id, offset)
    revivals = CutRevivals(left, offsets, REVIVE_TOPIC)
    progress = CutProgress(
        offsets=offsets,
        levels={},
        revivals=revivals,
        read_record=left.read_record,
        disk=disk,
        directory=DIRECTORY,
    )
    for _ in progress.lowering(START):
        pass
    return offsets.queues_of(REVIVE_GROUP, REVIVE_TOPIC)


def test_the_record_that_comes_where_the_revive_queue_ends_now_is_not_passed_over() -> None:
    """The offset of this group names the last record that was dealt with, not the next one."""
    left = LeftLog({0: [check_point(offset, 0) for offset in range(5)]})
    assert settled(left, {0: 5, 1: 0, 2: 9}) == {0: 4}


def test_a_check_point_whose_copies_were_cut_off_is_dealt_with_again() -> None:
    left = LeftLog(
        {queue_id: [check_point(offset, 100 + offset) for offset in range(300)] for queue_id in (0, 1)}
    )
    left.revive[1][250] = check_point(250, 20, group="other")
    for offset, message in ((100, 20), (200, 21)):
        left.records[offset] = record(b"x", topic="t", queue_id=3, queue_offset=message)
    left.revive[0][40] = check_point(40, 20)
    left.revive[0][200] = check_point(200, 20)  # handed out again: the newest one counts
    left.revive[0][150] = check_point(150, 21)
    copies = [
        record(b"x", topic="%RETRY%g_t", transaction_offset=source_pointer(offset)) for offset in (100, 200)
    ]
    elsewhere = record(
        b"x", topic="%RETRY%g_t", transaction_offset=source_pointer(START + 9)
    )  # its message was cut off, too
    assert settled(left, {0: 290, 1: 290}) == {0: 290, 1: 290}
    assert settled(left, {0: 290, 1: 290}, elsewhere) == {0: 290, 1: 290}
    assert settled(left, {0: 290, 1: 290}, copies[0]) == {0: 199, 1: 290}
    assert settled(left, {0: 290, 1: 290}, b"".join(copies)) == {0: 149, 1: 290}


def test_a_message_of_a_retry_topic_is_copied_again_there() -> None:
    topic = "%RETRY%g+t"
    left = LeftLog(
        {0: [check_point(0, 7, topic)]}, {100: record(b"x", topic=topic, queue_id=3, queue_offset=7)}
    )
    assert settled(left, {0: 0}, record(b"x", topic=topic, transaction_offset=source_pointer(100))) == {}
