"""Damaged stores: the short form of damage.py, and each kind of damage that once lost or repeated messages by its name."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import struct
from pathlib import Path

import pytest

from aerobee.errors import StoreError
from aerobee.store.files.disk import RealDisk
from tests.abuse import damage
from tests.abuse.damage import Base, make_ours, read_queue

CASES = 60
# Cases of damage.py that lost whole messages, or gave an offset again, until the fault named next to them was fixed.
ONCE_LOST = {
    4843: "a queue is built again from the last entry before the damage that is right",
    5791: "the same, over entries that were overwritten",
    5841: "a start that ends for another file's rights forgets no queue that it had begun to mend",
    3017: "a refused start over RocketMQ's store keeps the offsets of the entries that it cut",
    4857: "the same, of one record",
    8997: "the same, of several",
    2699: "a record between two that are damaged is served",
    4001: "the same in a batch queue",
    7354: "the same between two files of zeros",
    3108: "RocketMQ's whole records behind a damaged one are no torn end",
    5093: "nor are ours when the checkpoint is gone",
    20842: "an entry is found again behind a damaged part of the log",
}
QUIET = ("quiet", 0)
ORDERS = ("orders", 1)


def test_whatever_happens_to_a_store_it_says_so_and_serves_the_rest() -> None:
    outcomes = damage.run_cases(1, CASES)
    assert sum(outcomes.values()) == CASES
    assert len(outcomes) > 2, "stores of every kind, refused ones among them"


def test_damage_is_noticed_wherever_the_last_flush_was() -> None:
    outcomes = damage.run_cases(1, CASES, damage.FLUSHED)
    assert sum(outcomes.values()) == CASES
    assert len(outcomes) > 2


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    return damage.make_bases(tmp_path_factory.mktemp("bases"), damage.KINDS)


@pytest.mark.parametrize("case", ONCE_LOST)
def test_what_was_once_lost_is_served(case: int, bases: dict[str, Base], tmp_path: Path) -> None:
    kind, outcome = damage.run_case(case, bases, damage.KINDS, tmp_path)
    assert (kind, bool(outcome)) == (damage.KINDS[case % len(damage.KINDS)], True)


def test_a_refused_start_over_rocketmqs_store_is_refused_again_and_keeps_its_offsets(tmp_path: Path) -> None:
    base = damage.unpack_rocketmqs("killed", tmp_path)
    key = "StoreBig", 0
    (victim,) = base.queues[key]
    path = min((base.root / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[victim.physical + 4] ^= 0xFF
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"log bytes {victim.physical} to"):
            base.make(base.root).load()
    store = base.make(base.root, truncate_corrupt_log=True)
    store.load()
    assert store.next_offset(*key) == base.ends[key] == 1
    asyncio.run(store.stop())


@pytest.fixture(params=[False, True], ids=["clean", "crashed"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Base:
    return make_ours(tmp_path / "store", crashed=request.param)


def files(base: Base, directory: str) -> list[Path]:
    return sorted((base.root / directory).iterdir())


@pytest.mark.parametrize(
    ("flushed", "disk"),  # a power loss may take what was not flushed
    [
        ("half", RealDisk),
        *((flushed, disk) for flushed in ("log", "all") for disk in (RealDisk, damage.Rebooted)),
    ],
)
def test_a_lost_last_log_file_is_refused_and_named_and_what_is_left_can_be_had(
    tmp_path: Path, flushed: str, disk: type[RealDisk]
) -> None:
    for number, harm in enumerate(
        (
            lambda path: path.unlink(),
            lambda path: path.write_bytes(b""),
            lambda path: path.write_bytes(bytes(16_384)),
        )
    ):
        base = make_ours(tmp_path / str(number), crashed=True, flushed=flushed)
        last = files(base, "commitlog")[-1]
        if not last.read_bytes().strip(b"\0"):
            last = files(base, "commitlog")[-2]
        harm(last)
        for _ in range(2):  # a refused start must not take the evidence away
            with pytest.raises(StoreError, match="commit log") as caught:
                base.make(base.root, disk()).load()
            assert "truncateCorruptLog=true" in str(caught.value)
        store = base.make(base.root, disk(), truncate_corrupt_log=True)
        store.load()
        assert store.log.end <= store.log.segments[-1].end
        for key, end in base.ends.items():
            assert store.next_offset(*key) >= end, "offsets would be used twice"
        sent = damage.message(random.Random(1), *ORDERS, 1)
        given = store.append(sent).queue_offset
        asyncio.run(store.stop())
        store = base.make(base.root)
        store.load()
        assert read_queue(store, ORDERS)[-1].offset == given
        asyncio.run(store.stop())


@pytest.mark.parametrize("which", ["first", "middle", "last", "directory"])
def test_lost_queue_files_are_built_again_with_their_offsets(
    base: Base, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    was_crash = (base.root / "abort").exists()
    queue = files(base, "consumequeue/orders/1")
    if which == "directory":
        shutil.rmtree(queue[0].parent)
    else:
        {"first": queue[0], "middle": queue[1], "last": queue[-1]}[which].unlink()
    store = base.make(base.root)
    with caplog.at_level(logging.WARNING):
        store.load()
    assert [kept.record for kept in read_queue(store, ORDERS)] == [
        kept.record for kept in base.queues[ORDERS]
    ]
    assert store.next_offset(*ORDERS) == base.ends[ORDERS]
    if which != "last" or not was_crash:
        assert (
            "queue orders 1 had lost entries" in caplog.text
        )  # a crash reads the newest records again anyway
    asyncio.run(store.stop())


def test_a_queue_without_new_messages_that_lost_all_its_files_is_missed(base: Base) -> None:
    shutil.rmtree(base.root / "consumequeue" / "quiet")
    store = base.make(base.root)
    store.load()
    assert [kept.offset for kept in read_queue(store, QUIET)] == [0]
    asyncio.run(store.stop())


def test_a_queue_file_that_was_cut_is_not_said_to_be_a_wrong_setting(base: Base) -> None:
    path = files(base, "consumequeue/orders/1")[0]
    path.write_bytes(path.read_bytes()[:133])
    store = base.make(base.root)
    store.load()
    assert len(read_queue(store, ORDERS)) == len(base.queues[ORDERS])
    asyncio.run(store.stop())


@pytest.mark.parametrize("field", ["size", "magic"])
def test_one_damaged_record_is_skipped_and_its_offset_logged(
    base: Base, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = base.queues[ORDERS]
    victim = messages[3]
    path = base.root / "commitlog" / f"{victim.physical - victim.physical % 16_384:020d}"
    data = bytearray(path.read_bytes())
    data[victim.physical % 16_384 + (0 if field == "size" else 4)] ^= 0x40
    path.write_bytes(data)
    store = base.make(base.root)
    store.load()
    with caplog.at_level(logging.WARNING):
        found = [kept.offset for kept in read_queue(store, ORDERS)]
    wanted = [kept.offset for kept in messages]
    if field == "size":
        wanted.remove(victim.offset)
        assert f"log byte {victim.physical}" in caplog.text
    assert found == wanted
    asyncio.run(store.stop())


def test_a_lost_index_is_built_again_and_that_is_said(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(base.root / "index")
    store = base.make(base.root)
    with caplog.at_level(logging.WARNING):
        store.load()
    assert "the key index" in caplog.text
    assert store.query("orders", "k1", count_max=10).count or store.query("batches", "k1", count_max=10).count
    asyncio.run(store.stop())


def test_damaged_bytes_that_are_left_out_are_kept_and_nothing_behind_them_is_lost(tmp_path: Path) -> None:
    base = make_ours(tmp_path / "store", crashed=True)
    victim = max(base.queues[ORDERS], key=lambda kept: kept.physical)
    after = [
        kept for messages in base.queues.values() for kept in messages if kept.physical > victim.physical
    ]
    path = base.root / "commitlog" / f"{victim.physical - victim.physical % 16_384:020d}"
    data = bytearray(path.read_bytes())
    data[victim.physical % 16_384 + 4] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"log bytes {victim.physical}"):
        base.make(base.root).load()
    store = base.make(base.root, truncate_corrupt_log=True)
    store.load()
    served = {kept.record for key in base.queues for kept in read_queue(store, key)}
    assert after
    assert all(kept.record in served for kept in after)
    assert [entry.read_bytes()[4] for entry in (base.root / "damaged").iterdir()] == [victim.record[4] ^ 0xFF]
    assert store.next_offset(*ORDERS) == base.ends[ORDERS]
    asyncio.run(store.stop())


def test_a_rocketmq_log_older_than_its_checkpoint_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = damage.unpack_rocketmqs("killed", tmp_path)
    path = base.root / "checkpoint"
    data = bytearray(path.read_bytes())
    (log_time,) = struct.unpack_from(">q", data)
    struct.pack_into(">q", data, 0, log_time + 10_000)
    path.write_bytes(data)
    store = base.make(base.root)
    with caplog.at_level(logging.WARNING):
        store.load()
    assert f"records of {log_time + 10_000} ms were on the disk" in caplog.text
    asyncio.run(store.stop())
