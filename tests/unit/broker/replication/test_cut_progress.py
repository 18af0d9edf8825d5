"""Offsets of POP groups and delay levels go back to the messages whose check points and deliveries a cut of the log took off."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import ACK_TAG, CK_TAG, Acks, CheckPoint
from aerobee.broker.pop.retry import FIRST_POP_TIME
from aerobee.broker.replication import cut_revivals
from aerobee.broker.replication.cut_progress import CutProgress
from aerobee.broker.replication.cut_revivals import CutRevivals
from aerobee.clock import ManualClock
from aerobee.message import encode_properties, encode_record, pack_host
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.log.source_pointer import source_pointer
from aerobee.store.log.stored_message import GetResult, GetStatus
from aerobee.system_names import REVIVE_GROUP, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_c"
START, DIRECTORY = 1_000, "/store/cut"
BLANK = (24).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(16)


@dataclass
class LeftLog:
    """What a cut left: records of the revive queues, and records by their physical offset."""

    revive: dict[int, list[bytes]] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)
    read_count: int = 0  # of records of the revive queues

    def get_messages(self, topic: str, queue_id: int, offset: int, *, count_max: int) -> GetResult:
        assert topic == REVIVE_TOPIC
        found = self.revive.get(queue_id, [])[offset : offset + min(count_max, 7)]
        self.read_count += len(found)
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
    physical_offset: int = 0,
    store_timestamp: int = 0,
    first_pop_time: str = "",
) -> bytes:
    host = pack_host("127.0.0.1", 1)
    return encode_record(
        topic=topic.encode(), queue_id=queue_id, queue_offset=queue_offset, physical_offset=physical_offset, body=body,
        properties=encode_properties({"TAGS": tag, FIRST_POP_TIME: first_pop_time}).encode(),
        born_host=host, store_host=host, prepared_transaction_offset=transaction_offset, store_timestamp=store_timestamp,
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


def check_point(
    offset: int, message: int, topic: str = "t", group: str = "g", *, at: int = 0, stored_ms: int = 0
) -> bytes:
    """A record of the revive topic at queue offset `offset`: the message at an offset of queue 3 was handed out at time `offset`."""
    found = CheckPoint(
        topic=topic, group=group, queue_id=3, start_offset=message, offsets=(message,),
        pop_time=offset, invisible_ms=60_000, broker_name="b",
    )  # fmt: skip
    return record(
        found.encode(), CK_TAG, topic=REVIVE_TOPIC, queue_offset=offset, physical_offset=at, store_timestamp=stored_ms
    )  # fmt: skip


def acknowledgement(offset: int, message: int, pop_time: int, *, at: int) -> bytes:
    """A record of the revive topic at queue offset `offset`: the message of a check point was acknowledged."""
    acks = Acks(
        topic="t", group="g", queue_id=3, start_offset=message, pop_time=pop_time, broker_name="b", offsets=(message,)
    )  # fmt: skip
    return record(acks.encode(), ACK_TAG, topic=REVIVE_TOPIC, queue_offset=offset, physical_offset=at)


def message(offset: int, *, topic: str = "t", first_pop_time: str = "") -> bytes:
    return record(b"x", topic=topic, queue_id=3, queue_offset=offset, first_pop_time=first_pop_time)


def copy_of(source: int, *, topic: str = "%RETRY%g_t", stored_ms: int = 0, first_pop_time: str = "") -> bytes:
    """What revival stores of the message whose record begins at `source`."""
    return record(
        b"x", topic=topic, transaction_offset=source_pointer(source), store_timestamp=stored_ms, first_pop_time=first_pop_time
    )  # fmt: skip


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


def test_check_points_are_found_however_long_ago_they_were_stored() -> None:
    """The whole group was down for 15 minutes, and the deposed master copied what was due after its restart."""
    minute = 60_000
    left = LeftLog(
        {0: [check_point(offset, offset, stored_ms=minute) for offset in range(300)]}, {100: message(5)}
    )
    assert settled(left, {0: 299}, copy_of(100, stored_ms=16 * minute)) == {0: 4}


def test_copies_of_many_queues_end_the_search_together() -> None:
    """Each queue has one of the check points at its end: what lies before them is not read."""
    count = 2_000
    left = LeftLog(
        {
            queue_id: [check_point(offset, queue_id * count + offset, at=8 * offset + queue_id) for offset in range(count)]
            for queue_id in range(8)
        },
        {100 + queue_id: message(queue_id * count + count - 1) for queue_id in range(8)},
    )  # fmt: skip
    before = dict.fromkeys(range(8), count - 1)
    cut_off = b"".join(copy_of(100 + queue_id) for queue_id in range(8))
    assert settled(left, before, cut_off) == dict.fromkeys(range(8), count - 2)
    assert left.read_count <= 8 * 2 * cut_revivals.STEP_RECORDS


def test_a_search_that_ends_early_goes_back_to_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_revivals, "RECORDS_MAX", 100)
    left = LeftLog(
        {
            queue_id: [check_point(offset, 9, "other", at=8 * offset + queue_id) for offset in range(300)]
            for queue_id in (0, 1)
        },
        {100: message(5)},
    )
    assert settled(left, {0: 290, 1: 20}, copy_of(100)) == {0: 249, 1: 20}


def test_deliveries_to_retry_topics_are_not_searched_for() -> None:
    """What a delay level or the timer delivers there names its source, and no check point made it."""
    left = LeftLog(
        {0: [check_point(offset, 9) for offset in range(300)]},
        {100: message(5, topic=SCHEDULE_TOPIC), 200: message(6, topic=WHEEL_TIMER_TOPIC)},
    )
    assert settled(left, {0: 290}, copy_of(100) + copy_of(200)) == {0: 290}
    assert left.read_count == 0


def test_copies_whose_check_points_were_cut_off_are_not_searched_for() -> None:
    left = LeftLog({0: [check_point(offset, 9) for offset in range(300)]}, {100: message(5)})
    assert settled(left, {0: 299}, check_point(300, 5) + copy_of(100, first_pop_time="300")) == {0: 299}
    assert left.read_count == 0


def test_a_copy_names_its_check_point_by_the_time_of_the_pop() -> None:
    """The message was put off for less than its invisible time: the check point of that came first, and the newest one made no copy."""
    left = LeftLog(
        {
            0: [check_point(offset, 5 if offset in (1, 3) else 9, at=10 * offset) for offset in range(5)],
            1: [check_point(0, 5, at=45)],
        },
        {100: message(5)},
    )
    assert settled(left, {0: 4, 1: 0}, copy_of(100, first_pop_time="1")) == {0: 0, 1: 0}


def test_an_acknowledged_check_point_made_no_copy() -> None:
    """The message was copied before and has its first pop's time. An acknowledgement lies behind its check point."""
    left = LeftLog(
        {
            0: [check_point(offset, 5 if offset in (1, 3) else 9, at=10 * offset) for offset in range(4)],
            1: [acknowledgement(0, 5, 3, at=45)],
        },
        {100: message(5, first_pop_time="7")},
    )
    copy = copy_of(100, first_pop_time="7")
    assert settled(left, {0: 3}, copy) == {0: 0}
    del left.revive[1]
    assert settled(left, {0: 3}, copy) == {0: 2}


def test_check_points_that_are_not_settled_are_read_again_anyhow() -> None:
    left = LeftLog({0: [check_point(offset, offset % 10) for offset in range(20)]}, {100: message(5)})
    assert settled(left, {0: 12}, copy_of(100)) == {0: 12}
    assert settled(left, {0: 15}, copy_of(100)) == {0: 14}


def test_a_damaged_record_of_the_revive_topic_does_not_keep_a_cut_from_ending() -> None:
    queue = [check_point(offset, offset) for offset in range(20)]
    queue[12] = queue[12][:4] + b"zzzz" + queue[12][8:]
    left = LeftLog({0: queue}, {100: message(5)})
    assert settled(left, {0: 19}, copy_of(100)) == {0: 4}
