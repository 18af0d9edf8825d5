"""`aerobee store repair --from` and `--from-store`: damaged records come back from a replica, and nothing else does."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.message import TRANSACTION_PREPARED
from aerobee.ops.commands.tree import run_cli
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import MappedFile, RealDisk
from aerobee.store.verify.checker import verify
from aerobee.store.verify.repair import repair
from aerobee.store.verify.restore import records_of_directory, restore
from tests.abuse.damage import Base, Kept, make_ours, read_queue

FILE_BYTES = 16_384
SIZES = [
    "mappedFileSizeCommitLog=16384", "mappedFileSizeConsumeQueue=400", "mapperFileSizeBatchConsumeQueue=460",
    "maxHashSlotNum=32", "maxIndexNum=100",
]  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return make_ours(tmp_path / "store", crashed=False)


@pytest.fixture
def replica(base: Base, tmp_path: Path) -> Path:
    """The same log in another directory."""
    shutil.copytree(base.root, tmp_path / "replica")
    return tmp_path / "replica"


def config_of(base: Base, root: Path | None = None) -> StoreConfig:
    return StoreConfig(store_path_root_dir=str(root or base.root), **base.config)


def overwrite(root: Path, physical: int, data: bytes) -> None:
    path = root / "commitlog" / f"{physical - physical % FILE_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(physical % FILE_BYTES)
        file.write(data)


def flip(root: Path, physical: int) -> None:
    path = root / "commitlog" / f"{physical - physical % FILE_BYTES:020d}"
    overwrite(root, physical, bytes([path.read_bytes()[physical % FILE_BYTES] ^ 1]))


def in_order(base: Base) -> list[Kept]:
    return sorted((kept for queue in base.queues.values() for kept in queue), key=lambda kept: kept.physical)


def damage(base: Base) -> list[int]:
    """A bit of a body; a head; noise over three records in a row. Returns where the five records are."""
    records = [kept for kept in in_order(base) if kept.physical % FILE_BYTES < FILE_BYTES - 4_000]
    body, head, first = records[3], records[20], records[40]
    row = [kept for kept in in_order(base) if kept.physical >= first.physical][:3]
    flip(base.root, body.physical + 90)
    overwrite(base.root, head.physical, bytes(40))
    end = row[-1].physical + len(row[-1].record)
    overwrite(base.root, first.physical, b"\xa5" * (end - first.physical))
    return [body.physical, head.physical, *(kept.physical for kept in row)]


def everything(base: Base) -> dict[tuple[str, int], list[Kept]]:
    store = base.make(base.root)
    store.load()
    try:
        return {key: read_queue(store, key) for key in base.queues}
    finally:
        asyncio.run(store.abandon())


@pytest.mark.parametrize("repaired_before", [False, True], ids=["immediately", "after a repair without it"])
def test_each_damaged_record_comes_back_from_a_copy(base: Base, replica: Path, repaired_before: bool) -> None:
    offsets = damage(base)
    if repaired_before:
        repair(config_of(base))
        assert everything(base) != base.queues
    done = restore(config_of(base), records_of_directory(replica))
    assert not done.refused
    assert done.records >= len(offsets)
    repair(config_of(base))
    assert verify(config_of(base)).is_whole
    assert everything(base) == base.queues


def test_what_was_there_is_kept(base: Base, replica: Path) -> None:
    offset = damage(base)[0]
    path = base.root / "commitlog" / f"{offset - offset % FILE_BYTES:020d}"
    size = int.from_bytes(path.read_bytes()[offset % FILE_BYTES :][:4], "big")
    before = path.read_bytes()[offset % FILE_BYTES :][:size]
    restore(config_of(base), records_of_directory(replica))
    assert (base.root / "damaged" / f"{offset:020d}-{size}").read_bytes() == before


def test_the_end_of_the_log_comes_back_as_far_as_the_queues_know_it(base: Base, replica: Path) -> None:
    records = in_order(base)
    last = [kept for kept in records if kept.physical // FILE_BYTES == records[-1].physical // FILE_BYTES]
    start = last[len(last) // 2].physical
    overwrite(base.root, start, bytes(FILE_BYTES - start % FILE_BYTES))
    assert not restore(config_of(base), records_of_directory(replica)).refused
    repair(config_of(base))
    assert everything(base) == base.queues


def test_a_replica_damaged_at_the_same_offset_restores_nothing(base: Base, replica: Path) -> None:
    offset = damage(base)[0]
    flip(replica, offset + 100)
    done = restore(config_of(base), records_of_directory(replica))
    assert [sentence for sentence in done.refused if f"log byte {offset}:" in sentence and "CRC" in sentence]
    assert offset in [each.start for each in verify(config_of(base)).damaged]


def test_records_of_another_log_are_not_taken(base: Base, tmp_path: Path) -> None:
    """The same sizes at the same offsets, other messages before and behind: each offset is refused, nothing is written."""
    damage(base)
    other = tmp_path / "other"
    shutil.copytree(base.root, other)
    records = in_order(base)
    for kept in records:  # whole records there, with another store time
        changed = bytearray(kept.record)
        changed[63] ^= 1
        overwrite(other, kept.physical, bytes(changed))
    before = {path: path.read_bytes() for path in (base.root / "commitlog").iterdir()}
    done = restore(config_of(base), records_of_directory(other))
    assert done.records == 0
    assert len(done.refused) == done.ranges
    assert all("another one" in sentence for sentence in done.refused)
    assert {path: path.read_bytes() for path in (base.root / "commitlog").iterdir()} == before


def lies(base: Base, replica: Path, change: Callable[[bytearray], None]) -> list[str]:
    """Damage one record, change the replica's record at its offset, and return what was refused."""
    victim = [kept for kept in in_order(base) if kept.physical % FILE_BYTES < FILE_BYTES - 4_000][3]
    overwrite(base.root, victim.physical, bytes(40))
    record = bytearray(victim.record)
    change(record)
    overwrite(replica, victim.physical, bytes(record))
    done = restore(config_of(base), records_of_directory(replica))
    assert done.records == 0
    return done.refused


def test_a_record_with_another_queue_offset_is_refused(base: Base, replica: Path) -> None:
    def other_message(record: bytearray) -> None:
        record[20:28] = (int.from_bytes(record[20:28], "big") ^ 1).to_bytes(8, "big")

    assert "which its queue here says" in lies(base, replica, other_message)[0]


def test_a_record_with_another_physical_offset_is_refused(base: Base, replica: Path) -> None:
    def other_offset(record: bytearray) -> None:
        record[28:36] = (1 << 40).to_bytes(8, "big")

    assert "no whole record" in lies(base, replica, other_offset)[0]


def set_offset(value: int) -> Callable[[bytearray], None]:
    def change(record: bytearray) -> None:
        record[20:28] = value.to_bytes(8, "big", signed=True)

    return change


def set_queue(value: int) -> Callable[[bytearray], None]:
    def change(record: bytearray) -> None:
        record[12:16] = value.to_bytes(4, "big", signed=True)

    return change


def as_prepared(record: bytearray) -> None:
    """Of a transaction that is open: such a record has no queue entry."""
    record[36:40] = (int.from_bytes(record[36:40], "big") | TRANSACTION_PREPARED).to_bytes(4, "big")


LIES = {
    "an offset behind the queue": set_offset(1 << 40),
    "a negative offset": set_offset(-5),
    "a queue that is not there": set_queue(7),
    "a negative queue": set_queue(-1),
    "no queue entry": as_prepared,
}


@pytest.mark.parametrize("known", ["entry", "hole", "nothing"])
@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_names_a_slot_that_does_not_exist_is_not_taken(
    base: Base, replica: Path, lie: str, known: str
) -> None:
    """The queue has the entry of what was there, a hole for it, or its files are gone."""
    victim = [kept for kept in base.queues["orders", 0] if kept.physical % FILE_BYTES < FILE_BYTES - 4_000][3]
    overwrite(base.root, victim.physical, bytes(40))
    if known == "hole":
        repair(config_of(base))
    elif known == "nothing":
        shutil.rmtree(base.root / "consumequeue" / "orders")
    record = bytearray(victim.record)
    LIES[lie](record)
    overwrite(replica, victim.physical, bytes(record))
    before = {path: path.read_bytes() for path in (base.root / "commitlog").iterdir()}
    done = restore(config_of(base), records_of_directory(replica))
    if (lie, known) == ("no queue entry", "nothing"):
        return  # nothing here says that there was an entry
    assert done.records == 0
    assert f"log byte {victim.physical}: the replica has message" in done.refused[0]
    assert {path: path.read_bytes() for path in (base.root / "commitlog").iterdir()} == before


def test_a_queue_whose_files_are_gone_believes_what_fits_between_its_records(
    base: Base, replica: Path
) -> None:
    damage(base)
    shutil.rmtree(base.root / "consumequeue" / "orders")
    assert not restore(config_of(base), records_of_directory(replica)).refused
    repair(config_of(base))
    assert everything(base) == base.queues


class Killed(Exception):
    """The process died."""


class MortalDisk(RealDisk):
    """A disk whose process dies in front of its n-th change."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.left = changes

    def step(self) -> None:
        if not self.left:
            raise Killed
        self.left -= 1

    def remove(self, path: str) -> None:
        self.step()
        super().remove(path)

    def replace_file(self, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
        self.step()
        super().replace_file(path, data, like=like, is_private=is_private)

    def open_mapped(self, path: str) -> MappedFile:
        return cast(MappedFile, MortalFile(super().open_mapped(path), self.step))

    def create_mapped(self, path: str, size: int) -> MappedFile:
        self.step()
        return cast(MappedFile, MortalFile(super().create_mapped(path, size), self.step))


class MortalFile:
    """Its process dies in front of a sync, with the bytes written, or in front of the space for them."""

    def __init__(self, file: MappedFile, step: Callable[[], None]) -> None:
        self._file = file
        self._step = step

    def __getattr__(self, name: str) -> object:
        if name in ("sync", "reserve"):
            self._step()
        return getattr(self._file, name)


def test_a_restore_that_is_cut_off_anywhere_loses_no_message(
    base: Base, replica: Path, tmp_path: Path
) -> None:
    """Messages of a batch queue and of an ordinary one were left out by a repair; their records come back."""
    victims = [
        next(kept for kept in base.queues[key][4:] if kept.physical % FILE_BYTES < FILE_BYTES - 4_000)
        for key in (("batches", 0), ("orders", 1))
    ]
    for victim in victims:
        overwrite(base.root, victim.physical, bytes(40))
    repair(config_of(base))
    changes, is_cut_off, served = 0, True, set()
    while is_cut_off:
        root = tmp_path / f"cut-off-{changes}"
        shutil.copytree(base.root, root)
        try:
            restore(config_of(base, root), records_of_directory(replica), disk=MortalDisk(changes))
            is_cut_off = False
        except Killed:
            pass
        here = dataclasses.replace(base, root=root)
        at_once = everything(here)  # a broker is started in between
        for victim, key in zip(victims, (("batches", 0), ("orders", 1)), strict=True):
            path = root / "commitlog" / f"{victim.physical - victim.physical % FILE_BYTES:020d}"
            is_back = path.read_bytes()[victim.physical % FILE_BYTES :].startswith(victim.record)
            assert (victim in at_once[key]) == is_back, f"after {changes} changes, {key}"
            served.add(is_back)
        assert not restore(config_of(base, root), records_of_directory(replica)).refused
        repair(config_of(base, root))
        assert everything(here) == base.queues, f"after {changes} changes"
        shutil.rmtree(root)
        changes += 1 if changes < 14 else 6  # the queues' files go, records come back, queues are built
    assert changes > 14
    assert served == {False, True}


def test_a_restore_that_is_cut_off_anywhere_keeps_what_vouches_for_the_end_of_the_log(
    base: Base, replica: Path, tmp_path: Path
) -> None:
    """A message in the middle was left out by a repair; later the end is damaged, and entries of the same queue lead there."""
    records = in_order(base)
    last = [kept for kept in records if kept.physical // FILE_BYTES == records[-1].physical // FILE_BYTES]
    start = last[len(last) // 2].physical
    assert any(kept.physical >= start for kept in base.queues["orders", 1])
    victim = next(
        kept for kept in base.queues["orders", 1][4:] if kept.physical % FILE_BYTES < FILE_BYTES - 4_000
    )
    assert victim.physical < start
    overwrite(base.root, victim.physical, bytes(40))
    shutil.rmtree(base.root / "consumequeue" / "orders")  # built again, it has a hole
    repair(config_of(base))
    overwrite(base.root, start, bytes(FILE_BYTES - start % FILE_BYTES))
    changes, is_cut_off = 0, True
    while is_cut_off:
        root = tmp_path / f"cut-off-{changes}"
        shutil.copytree(base.root, root)
        try:
            restore(config_of(base, root), records_of_directory(replica), disk=MortalDisk(changes))
            is_cut_off = False
        except Killed:
            pass
        assert not restore(config_of(base, root), records_of_directory(replica)).refused
        repair(config_of(base, root))
        assert everything(dataclasses.replace(base, root=root)) == base.queues, f"after {changes} changes"
        shutil.rmtree(root)
        changes += 1 if changes < 16 else 10
    assert changes > 14


def test_restored_records_are_served_despite_a_refused_one(base: Base, replica: Path) -> None:
    offsets = damage(base)
    shutil.rmtree(base.root / "consumequeue" / "orders")  # built again, it has holes
    repair(config_of(base))
    flip(replica, offsets[0] + 100)
    done = restore(config_of(base), records_of_directory(replica))
    assert len(done.refused) == 1
    here = everything(base)
    for key, queue in base.queues.items():
        assert here[key] == [kept for kept in queue if kept.physical != offsets[0]]


@pytest.mark.parametrize(
    "left_out", [False, True], ids=["another replica has the end", "the end is left out"]
)
def test_an_end_that_one_replica_lacks_comes_back_from_another(
    base: Base, replica: Path, tmp_path: Path, left_out: bool
) -> None:
    """A message in the middle was left out by a repair, and entries of its queue are all that vouches for the end of the log."""
    records = in_order(base)
    last = [kept for kept in records if kept.physical // FILE_BYTES == records[-1].physical // FILE_BYTES]
    start = last[len(last) // 2].physical
    victim = next(
        kept for kept in base.queues["orders", 1][4:] if kept.physical % FILE_BYTES < FILE_BYTES - 4_000
    )
    overwrite(base.root, victim.physical, bytes(40))
    shutil.rmtree(base.root / "consumequeue" / "orders")  # built again, it has a hole
    repair(config_of(base))
    overwrite(base.root, start, bytes(FILE_BYTES - start % FILE_BYTES))
    shutil.copytree(replica, tmp_path / "worse")
    flip(tmp_path / "worse", start + 100)
    done = restore(config_of(base), records_of_directory(tmp_path / "worse"))
    assert [sentence for sentence in done.refused if f"log byte {start}:" in sentence and "CRC" in sentence]
    waits = [sentence for sentence in done.refused if f"log byte {victim.physical}:" in sentence]
    assert len(waits) == 1
    assert f"from byte {start} on" in waits[0]
    if left_out:
        repair(config_of(base))
    done = restore(config_of(base), records_of_directory(tmp_path / "worse" if left_out else replica))
    assert bool(done.refused) == left_out
    repair(config_of(base))
    wanted = {
        key: [kept for kept in queue if not left_out or kept.physical < start]
        for key, queue in base.queues.items()
    }
    assert everything(base) == wanted


def test_a_record_longer_than_the_damage_is_not_taken(base: Base, replica: Path) -> None:
    def longer(record: bytearray) -> None:
        record[0:4] = (len(record) + 8).to_bytes(4, "big")

    assert lies(base, replica, longer)


def test_a_store_that_is_whole_stays_as_it_is(base: Base, replica: Path) -> None:
    before = {path: path.read_bytes() for path in (base.root / "commitlog").iterdir()}
    done = restore(config_of(base), records_of_directory(replica))
    assert (done.records, done.refused) == (0, [])
    assert {path: path.read_bytes() for path in (base.root / "commitlog").iterdir()} == before


def test_the_command_repairs_nothing_after_a_refused_offset(
    base: Base, replica: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offset = damage(base)[0]
    flip(replica, offset + 100)
    words = [
        "store",
        "repair",
        "--data",
        str(base.root),
        *(word for size in SIZES for word in ("--set", size)),
    ]
    assert run_cli([*words, "--from-store", str(replica)]) == 1
    printed = capsys.readouterr().out
    assert "not repaired" in printed
    assert "run again without --from" in printed
    assert [each.start for each in verify(config_of(base)).damaged] == [offset], "the others were taken back"
    assert run_cli(words) == 0


async def test_the_command_takes_them_from_a_running_replica(
    base: Base, replica: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = damage(base)
    config = BrokerConfig(
        bind_address="127.0.0.1", broker_ip1="127.0.0.1", listen_port=0, enable_vip_listener=False
    )
    broker = Broker(config, config_of(base, replica))
    await broker.start()
    words = [
        "store",
        "repair",
        "--data",
        str(base.root),
        *(word for size in SIZES for word in ("--set", size)),
    ]
    try:
        code = await asyncio.to_thread(run_cli, [*words, "--from", broker.address])
    finally:
        await broker.stop()
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert f"{len(offsets)} records" in printed.out
    assert "not restored" not in printed.out
    assert await asyncio.to_thread(everything, base) == base.queues


def test_sources_that_are_none_are_said(
    base: Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(base)
    words = [
        "store",
        "repair",
        "--data",
        str(base.root),
        *(word for size in SIZES for word in ("--set", size)),
    ]
    assert run_cli([*words, "--from-store", str(tmp_path / "nowhere")]) != 0
    assert "holds no commit log" in capsys.readouterr().err
    assert run_cli([*words, "--from", "127.0.0.1:1"]) != 0
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert run_cli([*words, "--from", "127.0.0.1:1", "--from-store", str(tmp_path)]) != 0
    assert "mutually exclusive" in capsys.readouterr().err
    assert verify(config_of(base)).damaged_count >= 3  # nothing was left out on the way
