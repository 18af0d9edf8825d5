"""The timer's files against those of RocketMQ 5.5.0, and what is kept of them after damage."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.errors import ConfigError, StoreFull
from aerobee.message import java_hash
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint, decode_timer_checkpoint
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import DELETE, UNIT_BYTES, UNITS_PER_STEP, TimerLog, TimerUnit
from aerobee.store.timer.timer_wheel import TimerWheel

DATA = Path(__file__).parents[3] / "data" / "store"
BASE_MS = 1_700_000_000_000


def unpacked(name: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        wanted = ("timerwheel", "/timerlog/", "/timercheck")
        archive.extractall(directory, [m for m in archive.getmembers() if any(w in m.name for w in wanted)])
    return directory / name, json.loads((DATA / f"{name}.expected.json").read_text())


def unit(slot_time: int, number: int, magic: int = 1) -> TimerUnit:
    return TimerUnit(-1, magic, slot_time - 1000, 1000, number, 100, java_hash("T"), slot_time + 7)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def files(disk: SimulatedDisk) -> TimerFiles:
    return new_files(disk)


def new_files(disk: SimulatedDisk, **config: Any) -> TimerFiles:
    disk.make_dirs("/store/config")
    settings = {"mapped_file_size_timer_log": 4096, "timer_roll_window_slot": 20, **config}
    return TimerFiles(StoreConfig(store_path_root_dir="/store", **settings), disk, slot_count=64)


def open_again(disk: SimulatedDisk, *, log_end: int = 1 << 40, queue_max: int = 1 << 40) -> TimerFiles:
    files = new_files(disk)
    files.load(log_end=log_end, queue_max=queue_max, queue_offset_of=lambda offset: None)
    return files


@pytest.mark.parametrize("name", ["clean-shutdown", "killed", "all-scenarios"])
def test_rocketmqs_files_are_read_to_the_last_field(name: str, tmp_path: Path) -> None:
    root, expected = unpacked(name, tmp_path)
    size = (root / "timerlog" / "00000000000000000000").stat().st_size
    log = TimerLog(str(root / "timerlog"), size, RealDisk())
    log.load()
    found = [
        {
            "size": UNIT_BYTES,
            "prevPos": each.previous,
            "magic": each.magic,
            "currWriteTime": each.write_time,
            "delayMs": each.delay_ms,
            "physicalOffset": each.physical_offset,
            "messageSize": each.message_size,
            "topicHash": each.topic_hash,
            "reserved": each.due_ms,
        }
        for _, each in log.units(0)
    ]
    assert found == expected["timerLog"]
    wheel = TimerWheel(str(root / "timerwheel"), RealDisk(), precision_ms=1000)
    wheel.load()
    slots = [(s.time_ms // 1000, s.first, s.last, s.number) for s in wheel.slots()]
    assert slots == [(s["time"], s["firstPos"], s["lastPos"], s["num"]) for s in expected["timerWheel"]]
    checkpoint = decode_timer_checkpoint((root / "config" / "timercheck").read_bytes())
    wanted = expected["timerCheckpoint"]
    assert checkpoint == TimerCheckpoint(
        read_time_ms=wanted["lastReadTimeMs"],
        log_flushed=wanted["lastTimerLogFlushPos"],
        queue_offset=wanted["lastTimerQueueOffset"],
        master_queue_offset=wanted["masterTimerQueueOffset"],
        state_version=wanted["stateVersion"],
        timestamp=wanted["timestamp"],
        counter=wanted["counter"],
    )
    log.close()
    wheel.close()


def test_the_checkpoint_keeps_what_rocketmq_does_not_know_until_rocketmq_writes_it() -> None:
    ours = TimerCheckpoint(
        read_time_ms=5000, log_flushed=104, queue_offset=2, counter=7, scan_from=99, is_closed=True
    )
    data = ours.encode()
    assert len(data) == 4096
    assert decode_timer_checkpoint(data) == ours
    theirs = TimerCheckpoint(read_time_ms=6000, log_flushed=104, queue_offset=2, counter=8)
    assert decode_timer_checkpoint(theirs.fields() + data[56:]) == theirs
    damaged = data[:70] + b"\xff" + data[71:]
    read = decode_timer_checkpoint(damaged)
    assert read is not None
    assert read.scan_from == -1
    assert decode_timer_checkpoint(bytes(4096)) is None
    assert decode_timer_checkpoint(data[:40]) is None


def test_units_of_a_slot_are_chained_over_files(files: TimerFiles) -> None:
    for number in range(200):  # 78 units fit a file
        files.add(BASE_MS + number % 2 * 1000, unit(BASE_MS + number % 2 * 1000, number))
    assert files.log.file_count == 3
    slot = files.slot(BASE_MS)
    assert slot is not None
    assert slot.number == 100
    chain = [each.physical_offset for _, each in files.log.chain(slot.last, BASE_MS, 1000)]
    assert chain == list(range(198, -1, -2))
    assert [each.physical_offset for _, each in files.log.units(0)] == list(range(200))


def test_a_slot_that_is_used_again_begins_a_new_chain(files: TimerFiles) -> None:
    files.add(BASE_MS, unit(BASE_MS, 1))
    slot_reused_ms = BASE_MS + 2 * 64 * 1000  # the same slot of the wheel
    assert files.slot(slot_reused_ms) is None
    files.add(slot_reused_ms, unit(slot_reused_ms, 2))
    slot = files.slot(slot_reused_ms)
    assert slot is not None
    assert [each.physical_offset for _, each in files.log.chain(slot.last, slot_reused_ms, 1000)] == [2]
    assert files.slot(BASE_MS) is None


def test_a_message_that_cancels_counts_down(files: TimerFiles) -> None:
    files.add(BASE_MS, unit(BASE_MS, 1))
    files.add(BASE_MS, unit(BASE_MS, 2, 1 | DELETE))
    files.add(BASE_MS, unit(BASE_MS, 3, 1 | DELETE))
    slot = files.slot(BASE_MS)
    assert slot is not None
    assert slot.number == -1  # as RocketMQ counts


def test_units_behind_the_checkpoint_are_dropped_and_their_slots_mended(disk: SimulatedDisk) -> None:
    files = open_again(disk)
    for number in range(3):
        files.add(BASE_MS, unit(BASE_MS, number))
    files.save(
        TimerCheckpoint(
            read_time_ms=BASE_MS, log_flushed=files.log.end, queue_offset=3, counter=1, scan_from=0
        )
    )
    files.add(BASE_MS, unit(BASE_MS, 3))
    files.add(BASE_MS + 1000, unit(BASE_MS + 1000, 4))
    disk.crash()
    files = open_again(disk)
    slot = files.slot(BASE_MS)
    assert slot is not None
    assert [each.physical_offset for _, each in files.log.chain(slot.last, BASE_MS, 1000)] == [2, 1, 0]
    assert files.slot(BASE_MS + 1000) is None
    assert files.log.end == 3 * UNIT_BYTES


def test_rocketmqs_units_behind_its_checkpoint_are_kept(disk: SimulatedDisk) -> None:
    files = open_again(disk)
    for number in range(3):
        files.add(BASE_MS, unit(BASE_MS, number))
    files.save(TimerCheckpoint(read_time_ms=BASE_MS, log_flushed=UNIT_BYTES, queue_offset=1, counter=1))
    disk.crash()
    files = new_files(disk)
    checkpoint = files.load(log_end=1 << 40, queue_max=9, queue_offset_of=lambda offset: offset)
    assert checkpoint is not None
    assert checkpoint.queue_offset == 3
    slot = files.slot(BASE_MS)
    assert slot is not None
    assert len(list(files.log.chain(slot.last, BASE_MS, 1000))) == 3


def test_a_lost_wheel_is_made_again_from_the_units(disk: SimulatedDisk) -> None:
    files = open_again(disk)
    for number in range(100):
        files.add(BASE_MS + number * 500 // 1000 * 1000, unit(BASE_MS + number * 500 // 1000 * 1000, number))
    files.save(
        TimerCheckpoint(
            read_time_ms=BASE_MS, log_flushed=files.log.end, queue_offset=100, counter=1, scan_from=0
        )
    )
    before = list(files.wheel.slots())
    disk.remove("/store/timerwheel")
    disk.crash()
    assert sorted(open_again(disk).wheel.slots()) == sorted(before)


@pytest.mark.parametrize(
    "harm", ["none", "wheel gone", "wheel zeroed", "never saved", "RocketMQ's", "log zeroed"]
)
def test_files_are_opened_in_steps_that_are_short(
    disk: SimulatedDisk, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that becomes master opens them while it serves: between two steps its event loop gets its turn."""
    size = 1 << 20
    files = new_files(disk, mapped_file_size_timer_log=size)
    files.load(log_end=1, queue_max=1, queue_offset_of=lambda offset: None)
    for number in range(10_000):
        files.add(BASE_MS + number % 50 * 1000, unit(BASE_MS + number % 50 * 1000, number))
    if harm != "never saved":
        files.save(
            TimerCheckpoint(
                read_time_ms=BASE_MS,
                log_flushed=UNIT_BYTES if harm == "RocketMQ's" else files.log.end,
                queue_offset=1 if harm == "RocketMQ's" else 10_000,
                counter=1,
                scan_from=-1 if harm == "RocketMQ's" else 7,
            )
        )
    wanted = sorted(files.wheel.slots())
    if harm == "wheel gone":
        disk.remove("/store/timerwheel")
    elif harm in ("wheel zeroed", "log zeroed"):
        path = "/store/timerwheel" if harm == "wheel zeroed" else "/store/timerlog/" + "0" * 20
        disk.replace_file(path, bytes(len(disk.content(path))))
    files = new_files(disk, mapped_file_size_timer_log=size)
    looked, most, steps = 0, 0, 0
    pieces, read, slot_of = TimerLog.unit_pieces, TimerLog.read, TimerFiles._slot_of

    def counted(log: TimerLog, start: int) -> Iterator[tuple[int, bytes]]:
        nonlocal looked
        for position, data in pieces(log, start):
            looked += len(data) // UNIT_BYTES // 8  # a unit of a piece costs an eighth of a single one
            yield position, data

    def counted_slot(files: TimerFiles, unit: TimerUnit) -> int:
        nonlocal looked
        looked += 1
        return slot_of(files, unit)

    def counted_read(log: TimerLog, position: int) -> TimerUnit | None:
        nonlocal looked
        looked += 1
        return read(log, position)

    monkeypatch.setattr(TimerLog, "unit_pieces", counted)
    monkeypatch.setattr(TimerFiles, "_slot_of", counted_slot)
    monkeypatch.setattr(TimerLog, "read", counted_read)
    for _ in files.opening(log_end=1 << 40, queue_max=10_000, queue_offset_of=lambda offset: offset):
        steps, most, looked = steps + 1, max(most, looked), 0
    assert max(most, looked) <= 2 * UNITS_PER_STEP
    if harm in ("never saved", "log zeroed"):
        assert list(files.wheel.slots()) == []
    else:
        assert steps > 5
        assert sorted(files.wheel.slots()) == wanted


@pytest.mark.parametrize("used", [0, 1, 5, 100])
def test_the_next_slot_that_is_used_is_found_with_a_look_at_so_many(disk: SimulatedDisk, used: int) -> None:
    files = open_again(disk)
    wheel, draw = files.wheel, random.Random(used)
    assert wheel.first_used(BASE_MS, 5) == BASE_MS + 5000, "there is no file yet"
    wheel.make()
    for _ in range(used):
        wheel.put(BASE_MS + draw.randrange(-wheel.slot_count, wheel.slot_count) * 1000, 0, 0, 1)
    times = sorted(slot.time_ms for slot in wheel.slots())
    for _ in range(300):
        start, count = BASE_MS + draw.randrange(wheel.slot_count) * 1000, draw.randrange(wheel.slot_count)
        end = start + count * 1000
        assert wheel.first_used(start, count) == min([each for each in times if start <= each] + [end, end])


def test_opening_that_is_given_up_at_any_step_is_begun_anew(disk: SimulatedDisk) -> None:
    """As of a broker that lost its mastership while it took over."""
    files = new_files(disk, mapped_file_size_timer_log=1 << 20)
    files.load(log_end=1, queue_max=1, queue_offset_of=lambda offset: None)
    for number in range(5_000):
        files.add(BASE_MS + number % 50 * 1000, unit(BASE_MS + number % 50 * 1000, number))
    files.save(
        TimerCheckpoint(
            read_time_ms=BASE_MS,
            log_flushed=files.log.end,
            queue_offset=5_000,
            counter=1,
            scan_from=7,
            is_closed=True,
        )
    )
    wanted = sorted(files.wheel.slots())
    files.wheel.put(BASE_MS, -1, 1 << 40, 3)
    for given_up in range(30):
        files.close()
        steps = files.opening(log_end=1 << 40, queue_max=5_000, queue_offset_of=lambda offset: offset)
        for _ in range(given_up):
            next(steps, None)
        steps.close()
    files.close()
    checkpoint = files.load(log_end=1 << 40, queue_max=5_000, queue_offset_of=lambda offset: offset)
    assert checkpoint is not None
    assert (checkpoint.queue_offset, checkpoint.scan_from, checkpoint.read_time_ms) == (5_000, 7, BASE_MS)
    assert sorted(files.wheel.slots()) == wanted


def test_a_lost_timer_log_means_reading_the_queue_again(disk: SimulatedDisk) -> None:
    files = open_again(disk)
    files.add(BASE_MS, unit(BASE_MS, 1))
    files.save(TimerCheckpoint(read_time_ms=BASE_MS, log_flushed=52, queue_offset=1, counter=1, scan_from=0))
    disk.remove("/store/timerlog/00000000000000000000")
    disk.crash()
    files = new_files(disk)
    checkpoint = files.load(log_end=1, queue_max=1, queue_offset_of=lambda offset: None)
    assert checkpoint is not None
    assert (checkpoint.queue_offset, checkpoint.read_time_ms, checkpoint.scan_from) == (0, BASE_MS, 0)
    assert files.slot(BASE_MS) is None


@pytest.mark.parametrize("harm", ["zeroed", "garbage", "first file gone", "middle file gone", "cut"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_damaged_timer_log_means_reading_the_queue_again_and_is_said(
    disk: SimulatedDisk, harm: str, closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = open_again(disk)
    for number in range(200):
        files.add(BASE_MS, unit(BASE_MS, number))
    files.save(
        TimerCheckpoint(
            read_time_ms=BASE_MS,
            log_flushed=files.log.end,
            queue_offset=200,
            counter=1,
            scan_from=7,
            is_closed=closed,
        )
    )
    first, middle = (f"/store/timerlog/{base:020d}" for base in (0, 4096))
    if harm in ("first file gone", "middle file gone"):
        disk.remove(first if harm == "first file gone" else middle)
    else:
        data = disk.content(first)
        content = {"zeroed": bytes(4096), "garbage": data[::-1], "cut": data[:1000]}[harm]
        disk.replace_file(first, content)
    disk.crash()
    files = new_files(disk)
    checkpoint = files.load(log_end=1 << 40, queue_max=200, queue_offset_of=lambda offset: None)
    assert checkpoint is not None
    assert (checkpoint.queue_offset, checkpoint.read_time_ms) == (0, BASE_MS)
    assert files.slot(BASE_MS) is None
    assert "the timer log is damaged" in caplog.text
    assert files.add(BASE_MS, unit(BASE_MS, 0)) is None
    assert files.log.end == UNIT_BYTES


@pytest.mark.parametrize("harm", ["zeroed", "garbage", "gone", "cut"])
def test_a_damaged_wheel_is_written_again_from_the_timer_log_and_that_is_said(
    disk: SimulatedDisk, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = open_again(disk)
    for number in range(20):
        files.add(BASE_MS + number * 1000, unit(BASE_MS + number * 1000, number))
    files.save(
        TimerCheckpoint(
            read_time_ms=BASE_MS,
            log_flushed=files.log.end,
            queue_offset=20,
            counter=1,
            scan_from=7,
            is_closed=True,
        )
    )
    wanted = [files.slot(BASE_MS + number * 1000) for number in range(20)]
    data = disk.content("/store/timerwheel")
    if harm == "gone":
        disk.remove("/store/timerwheel")
    else:
        content = {
            "zeroed": bytes(len(data)),
            "garbage": random.Random(1).randbytes(len(data)),
            "cut": data[:99],
        }[harm]
        disk.replace_file("/store/timerwheel", content)
    disk.crash()
    files = open_again(disk, queue_max=20)
    assert [files.slot(BASE_MS + number * 1000) for number in range(20)] == wanted
    assert "the timer wheel was damaged" in caplog.text


def test_files_of_other_sizes_are_refused(disk: SimulatedDisk) -> None:
    files = open_again(disk)
    files.add(BASE_MS, unit(BASE_MS, 1))
    files.save(TimerCheckpoint(read_time_ms=BASE_MS, log_flushed=52, queue_offset=1, counter=1, scan_from=0))
    disk.crash()
    with pytest.raises(ConfigError, match="mappedFileSizeTimerLog is 8192"):
        new_files(disk, mapped_file_size_timer_log=8192).load(
            log_end=1, queue_max=1, queue_offset_of=lambda offset: None
        )


def test_a_full_disk_refuses_a_unit_and_changes_nothing(disk: SimulatedDisk) -> None:
    files = open_again(disk)
    files.add(BASE_MS, unit(BASE_MS, 0))
    disk.total_bytes = disk.used_bytes
    number = 1
    while files.log.end < 78 * UNIT_BYTES:  # so many fit a file
        files.add(BASE_MS, unit(BASE_MS, number))
        number += 1
    with pytest.raises(StoreFull):
        files.add(BASE_MS, unit(BASE_MS, number))
    slot = files.slot(BASE_MS)
    assert slot is not None
    assert slot.number == number
    disk.total_bytes += 100_000
    files.add(BASE_MS, unit(BASE_MS, number))
    assert len(list(files.log.units(0))) == number + 1
