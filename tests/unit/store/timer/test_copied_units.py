"""A slave's wheel that is made from pieces of the master's timer log is the master's wheel."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.timer import wheel_walk
from aerobee.store.timer.timer_checkpoint import (
    ROCKETMQ,
    CopiedFrom,
    TimerCheckpoint,
    decode_timer_checkpoint,
)
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import DELETE, ROLL, UNIT, UNIT_BYTES, TimerLog, TimerUnit
from aerobee.store.timer.wheel_walk import WalkPosition, decode_walk_position, walk
from tests.rounds import rounds

BASE_MS = 1_700_000_000_000
SLOTS = 64


def make_files(seed: int, file_bytes: int) -> tuple[TimerFiles, SimulatedDisk]:
    disk = SimulatedDisk(random.Random(seed))
    disk.make_dirs("/store/config")
    config = StoreConfig(store_path_root_dir="/store", mapped_file_size_timer_log=file_bytes)
    files = TimerFiles(config, disk, slot_count=SLOTS)
    files.load(log_end=0, queue_max=0, queue_offset_of=lambda offset: None)
    return files, disk


def unit(slot_time: int, number: int, magic: int = 1) -> TimerUnit:
    return TimerUnit(-1, magic, slot_time - 1000, 1000, number, 100, 7, slot_time + 7)


def waiting(files: TimerFiles, read_time_ms: int) -> dict[int, list[tuple[int, int, int]]]:
    """By slot what its chain has, from the read time on."""
    found = {}
    for slot in files.wheel.slots():
        if slot.time_ms >= read_time_ms:
            chain = files.log.chain(slot.last, slot.time_ms, files.precision_ms)
            found[slot.time_ms] = [(each.physical_offset, each.magic, each.due_ms) for _, each in chain]
    return found


class Master:
    """Random timers: they come one by one and in runs, leave slots for others, and slots are passed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files, _ = make_files(seed, self.rng.choice((4096, 4096 + 20, 5000)))
        self.read_time_ms = BASE_MS
        self.number = 0

    def next_unit(self) -> TimerUnit:
        self.number += 1
        slot_time = self.read_time_ms + 1000 * self.rng.randrange(SLOTS)
        return unit(slot_time, self.number, 1 | self.rng.choice((0, 0, 0, ROLL, DELETE)))

    def step(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.3:
            each = self.next_unit()
            self.files.add(each.slot_time, each)
        elif kind < 0.6:
            self.files.add_run([self.next_unit() for _ in range(rng.randrange(1, 30))])
        elif kind < 0.8:
            self.read_time_ms += 1000 * rng.randrange(4)
        else:
            self.leave(kind < 0.9)

    def leave(self, with_move: bool) -> None:
        """Messages leave a slot for others, as when the clock was set back, or are taken out of it."""
        slots = [each.time_ms for each in self.files.wheel.slots() if each.time_ms >= self.read_time_ms]
        if not slots:
            return
        time_ms = self.rng.choice(slots)
        slot = self.files.slot(time_ms)
        assert slot is not None
        chain = [each for _, each in self.files.log.chain(slot.last, time_ms, 1000)][::-1]
        left = [each for each in chain if self.rng.random() < 0.5]
        moved = [
            unit(self.read_time_ms, each.physical_offset, each.magic) for each in chain if each not in left
        ]
        if with_move:
            self.files.move(time_ms, moved, left or [chain[0]._replace(magic=DELETE)])
        elif left:
            self.files.replace_slot(time_ms, left)


@pytest.mark.parametrize("seed", range(rounds(60)))
def test_the_copied_wheel_has_each_waiting_message_in_its_slot(seed: int) -> None:
    master = Master(seed)
    rng = random.Random(-seed - 1)
    slave, _ = make_files(-seed - 1, rng.choice((4096, 4113)))
    position = master.files.log.min_position
    for _ in range(rng.randrange(20, 80)):
        master.step()
        if rng.random() < 0.3:
            continue
        while position < master.files.log.end:
            piece = master.files.log.piece(position, rng.randrange(1, 12))
            assert piece is not None
            data, position = piece
            slave.take([TimerUnit(*fields) for _, *fields in UNIT.iter_unpack(data)])
        assert waiting(slave, master.read_time_ms) == waiting(master.files, master.read_time_ms)


@pytest.mark.parametrize("seed", range(120))
def test_a_wheel_that_changes_while_it_is_read_is_copied_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that begins late reads the wheel in parts, and then the timer log from where it ended at the first part."""
    rng = random.Random(seed + 1_000)
    monkeypatch.setattr(wheel_walk, "UNITS_MAX", rng.choice((1, 3, 20, 1_000)))
    master = Master(seed)
    slave, _ = make_files(-seed - 1, 4096)
    for _ in range(rng.randrange(0, 40)):
        master.step()
    until, begin = master.files.log.end, WalkPosition()
    while True:
        part = walk(master.files, begin, read_time_ms=master.read_time_ms, until=until)
        slave.take(part.units[::-1], is_of_wheel=True)
        if part.following is None:
            break
        begin = decode_walk_position(part.following.encode())
        if rng.random() < 0.5:
            master.step()
    while until < master.files.log.end:
        piece = master.files.log.piece(until, 100)
        assert piece is not None
        data, until = piece
        slave.take([TimerUnit(*fields) for _, *fields in UNIT.iter_unpack(data)])
    mine, its = (
        {time_ms: sorted(units) for time_ms, units in waiting(files, master.read_time_ms).items()}
        for files in (slave, master.files)
    )
    assert mine == its


@pytest.mark.parametrize("text", ["", "1.2", "a.b.c", "1.2.3.4", "9" * 65])
def test_a_text_that_is_no_position_in_a_wheel_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_walk_position(text)


def test_a_position_outside_of_the_wheel_ends_the_walk() -> None:
    files, _ = make_files(1, 4096)
    files.add(BASE_MS, unit(BASE_MS, 60))
    for begin in (WalkPosition(1 << 70), WalkPosition(-5), WalkPosition(0, 1 << 60, BASE_MS)):
        part = walk(files, begin, read_time_ms=BASE_MS, until=files.log.end)
        assert len(part.units) <= 1


def test_no_piece_begins_between_units_or_outside_of_the_log() -> None:
    files, _ = make_files(1, 4096)
    files.add_run([unit(BASE_MS, number) for number in range(120)])
    assert files.log.piece(1, 5) is None
    assert files.log.piece(files.log.end + UNIT_BYTES, 5) is None
    assert files.log.piece(files.log.end, 5) == (b"", files.log.end)
    files.log.detach_first()
    assert files.log.piece(0, 5) is None


def copied(log_end: int) -> TimerCheckpoint:
    return TimerCheckpoint(
        read_time_ms=BASE_MS,
        log_flushed=UNIT_BYTES,
        queue_offset=1,
        counter=3,
        scan_from=50,
        copied_from=CopiedFrom(source=9, position=5 * UNIT_BYTES, log_end=log_end),
    )


def test_the_file_says_from_which_master_its_content_is() -> None:
    checkpoint = copied(1_000)
    data = checkpoint.encode()
    read = decode_timer_checkpoint(data)
    assert read is not None
    assert read.copied_from == checkpoint.copied_from
    damaged = bytearray(data)
    damaged[200] ^= 1
    read = decode_timer_checkpoint(bytes(damaged))
    assert read is not None
    assert read.copied_from is None


@pytest.mark.parametrize(("log_end", "is_true"), [(1_000, True), (999, False)])
def test_a_copied_checkpoint_is_true_of_a_log_that_is_long_enough(log_end: int, is_true: bool) -> None:
    files, disk = make_files(1, 4096)
    files.add(BASE_MS, unit(BASE_MS, 60))
    assert files.save(copied(1_000))
    for _ in range(2):
        again = TimerFiles(
            StoreConfig(store_path_root_dir="/store", mapped_file_size_timer_log=4096), disk, slot_count=SLOTS
        )
        read = again.load(log_end=log_end, queue_max=1, queue_offset_of=lambda offset: None)
        assert (read is not None) == is_true
        log_end = 1_000 if is_true else 2_000  # it was removed, and stays so when the log has grown
    assert bool(waiting(again, BASE_MS)) == is_true


def test_what_a_former_master_told_does_not_count_of_another_masters_wheel() -> None:
    files, disk = make_files(1, 4096)
    files.save(replace(copied(0), copied_from=CopiedFrom(source=ROCKETMQ, position=1, log_end=0)))
    files.close()
    files = TimerFiles(
        StoreConfig(store_path_root_dir="/store", mapped_file_size_timer_log=4096), disk, slot_count=SLOTS
    )
    files.load(log_end=1_000, queue_max=1, queue_offset_of=lambda offset: None)
    assert files.rebuilt_from is not None
    for _ in files.starting_over():
        pass
    assert files.rebuilt_from is None


def test_a_checkpoint_of_before_a_cut_is_not_written_any_more() -> None:
    files, disk = make_files(1, 4096)
    files.add(BASE_MS, unit(BASE_MS, 60))
    generation = files.generation
    files.revoke_saves()
    assert not files.save(copied(1_000), generation)
    assert not disk.exists("/store/config/timercheck")


def test_starting_over_leaves_nothing_at_whatever_step_it_ends() -> None:
    for step_count in range(6):
        files, disk = make_files(1, 4096)
        files.add_run([unit(BASE_MS, 10 * number) for number in range(240)])
        files.save(copied(0))
        for _, _ in zip(range(step_count), files.starting_over(), strict=False):
            pass
        files.close()
        again = TimerFiles(
            StoreConfig(store_path_root_dir="/store", mapped_file_size_timer_log=4096), disk, slot_count=SLOTS
        )
        read = again.load(log_end=1_000, queue_max=1, queue_offset_of=lambda offset: None)
        assert (read is None) == (step_count > 0)
        if step_count:
            assert not waiting(again, BASE_MS)
            assert again.log.end == again.log.min_position


def test_a_part_looks_at_few_units_whatever_position_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks names the end of the log that he knows: units behind it are left out, and cost time, too."""
    files, _ = make_files(1, 1 << 20)
    files.add_run([unit(BASE_MS, number) for number in range(6 * wheel_walk.UNITS_MAX)])
    looks = 0
    read = TimerLog.read

    def counted(log: TimerLog, position: int) -> TimerUnit | None:
        nonlocal looks
        looks += 1
        return read(log, position)

    monkeypatch.setattr(TimerLog, "read", counted)
    begin: WalkPosition | None = WalkPosition()
    part_count = 0
    while begin is not None:
        looks = 0
        part = walk(files, begin, read_time_ms=BASE_MS, until=0)
        assert not part.units
        assert looks <= wheel_walk.LOOKS_MAX + 1
        begin, part_count = part.following, part_count + 1
    assert part_count > 1


@pytest.mark.parametrize("marked_from", [-1, 0, 700])
def test_the_file_says_from_where_deliveries_name_messages(marked_from: int) -> None:
    data = bytearray(replace(copied(1_000), marked_from=marked_from).encode())
    read = decode_timer_checkpoint(bytes(data))
    assert read is not None
    assert read.marked_from == marked_from
    assert read.copied_from is not None
    data[48:56] = (99).to_bytes(8, "big")  # RocketMQ writes the first 56 bytes, among them the counter
    read = decode_timer_checkpoint(bytes(data))
    assert read is not None
    assert read.marked_from == -1
