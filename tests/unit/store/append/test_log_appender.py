"""LogAppender: the only writer of the log; listeners that fail; another log's bytes."""

from __future__ import annotations

import ast
import logging
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.clock import ManualClock
from aerobee.errors import RecordInvalid, StoreError, StoreFull, StoreNotWritable
from aerobee.message import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, pack_host
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.record_layout import Origin
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.consume_queue import ConsumeQueue
from tests.simulation.store_world import InlineExecutor
from tests.sources import nodes, tree_of, walk

PACKAGE = Path(__file__).resolve().parents[4] / "aerobee"
HOST = pack_host("127.0.0.1", 10_911)
FILE_BYTES = 4_096


def open_store(seed: int = 1, **settings: Any) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=64,
        max_index_num=200,
        commit_log_reserve_bytes=1_024,
        **settings,
    )
    store = MessageStore(
        config,
        disk=SimulatedDisk(random.Random(seed)),
        clock=ManualClock(1_000),
        executor=InlineExecutor(),
        store_host=lambda: HOST,
    )
    store.load()
    return store


def message(number: int = 0, topic: str = "orders", queue_id: int = 0, **changes: Any) -> StoredMessage:
    given: dict[str, Any] = {
        "topic": topic,
        "queue_id": queue_id,
        "body": b"body %d" % number,
        "properties": b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d\x02TAGS\x01t%d\x02" % (number, number, number % 3),
        "born_host": HOST,
    }
    return StoredMessage(**{**given, **changes})


# --- the one writer


def log_writers(tree: ast.Module) -> Iterator[ast.AST]:
    """Assignments to the end or the bytes of something that is called a log."""
    for node in nodes(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "setattr"
            and len(node.args) > 1
        ):
            if ast.unparse(node.args[1]) == "'end'" and is_log(node.args[0]):
                yield node
            continue
        for target in targets:
            for each in walk(target):
                if isinstance(each, ast.Attribute) and each.attr == "end" and is_log(each.value):
                    yield node
                if (
                    isinstance(each, ast.Subscript)
                    and isinstance(each.value, ast.Attribute)
                    and each.value.attr == "buffer"
                    and is_log(each.value.value)
                ):
                    yield node


def is_log(expression: ast.expr) -> bool:
    return ast.unparse(expression).rpartition(".")[2].lstrip("_") in ("log", "commit_log")


def test_only_the_appender_moves_the_end_of_the_log() -> None:
    writers = {
        str(path.relative_to(PACKAGE)): [node.lineno for node in found]  # type: ignore[attr-defined]
        for path in sorted(PACKAGE.rglob("*.py"))
        if (found := list(log_writers(tree_of(path))))
    }
    assert set(writers) == {"store/append/log_appender.py"}, writers


@pytest.mark.parametrize(
    "code",
    ["log.end = 1", "self._log.end += 2", "store.log.end, x = 1, 2", "setattr(a.log, 'end', 3)", "log.buffer[1:2] = b''"],
)  # fmt: skip
def test_the_check_for_writers_bites(code: str) -> None:
    assert list(log_writers(ast.parse(code)))


# --- listeners


def test_who_listens_to_one_topic_hears_of_no_other() -> None:
    store = open_store()
    of_all: list[tuple[str, int]] = []
    of_one: list[tuple[str, int]] = []
    store.on_arrival(lambda topic, queue_id, end, code: of_all.append((topic, end)))
    store.on_arrival(lambda topic, queue_id, end, code: of_one.append((topic, end)), "Other")
    for number in range(2):
        store.append(message(number))
    store.append(message(2, topic="Other"))
    (topic,) = {topic for topic, _ in of_all} - {"Other"}
    assert of_all == [(topic, 1), (topic, 2), ("Other", 1)]
    assert of_one == [("Other", 1)]


def test_a_listener_that_fails_harms_neither_the_append_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store()
    seen: list[int] = []

    def fail(*_: object) -> None:
        raise StoreFull("not a word about the store: a listener's own trouble")

    store.on_arrival(fail)
    store.on_arrival(lambda topic, queue_id, end, code: seen.append(end))
    with caplog.at_level(logging.ERROR):
        for number in range(5):
            assert store.append(message(number)).queue_offset == number
    assert seen == [1, 2, 3, 4, 5]
    assert store.visibility.arrivals.failure_count == 5
    assert len([entry for entry in caplog.records if entry.exc_info]) == 1  # the others are counted


def test_with_sync_flush_a_listener_that_fails_does_not_stop_what_is_durable() -> None:
    store = open_store(flush_disk_type="SYNC_FLUSH")
    durable: list[bool] = []

    def fail(*_: object) -> None:
        raise ValueError

    store.on_arrival(fail)
    for number in range(3):
        store.wait_durable(store.append(message(number)).end, durable.append)
    store.flush_now()
    assert durable == [True, True, True]
    assert store.max_offset("orders", 0) == 3


def test_a_record_that_cannot_be_finished_stops_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.append(message())

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(ConsumeQueue, "append_message", fail)
    with pytest.raises(StoreError, match="was not finished") as caught:
        store.append(message(1))
    assert not isinstance(caught.value, StoreNotWritable)
    end = store.log.end
    monkeypatch.undo()
    with pytest.raises(StoreNotWritable, match="was not finished"):
        store.append(message(1))
    assert store.log.end == end


@pytest.mark.parametrize(
    "changes", [{"flag": 1 << 40}, {"tags_code": 1 << 63}, {"born_timestamp": -(1 << 64)}, {"body": bytes(5_000)}]
)  # fmt: skip
def test_what_fits_no_field_changes_nothing(changes: dict[str, Any]) -> None:
    store = open_store()
    store.append(message())
    before = (store.log.end, store.queues["orders", 0].max_offset, store.index.files[-1].count)
    with pytest.raises((RecordInvalid, struct.error)):
        store.append(message(1, **changes))
    assert (store.log.end, store.queues["orders", 0].max_offset, store.index.files[-1].count) == before
    store.append(message(2))
    assert store.get_messages("orders", 0, 0, count_max=9).count == 2


def test_whole_messages_amid_a_burst_keep_the_order_of_the_index() -> None:
    store = open_store()
    appender, origin = store.appender, Origin(HOST)
    queue = store.queue("orders", 0)
    assert isinstance(queue, ConsumeQueue)
    origin.enter(HOST)
    origin.now_ms = 1_000
    offsets = []
    for number in range(40):
        field = b"\x06orders"
        offsets.append(
            appender.append_parts(
                origin, queue, field, b"x", b"", [number + 1, number + 2], 0, 0, 0, 5, 0, 0, False
            )
        )
        if number % 7 == 0:
            offsets.append(store.append(message(number)).physical_offset)
    appender.end_burst(1_000)
    found = []
    for file in store.index.files:
        found += [file._entry(number)[1] for number in range(1, file.count)]
    assert found == sorted(found)
    assert set(found) == set(offsets)
    assert store.last_record_offset == max(offsets)


# --- another log's bytes


def pieces(store: MessageStore, rng: random.Random) -> Iterator[tuple[int, bytes]]:
    """The log cut between records, never over a file's end."""
    at = store.log.min_offset
    while at < store.log.end:
        base = at - at % FILE_BYTES
        stop, bound = at, min(base + FILE_BYTES, store.log.end)
        for _ in range(rng.randrange(1, 6)):
            if stop < bound:
                stop += int.from_bytes(store.log.read(stop, 4), "big")
        yield at, store.log.read(at, stop - at)
        at = stop


def fill(store: MessageStore, rng: random.Random, count: int = 150) -> None:
    for number in range(count):
        kind = rng.randrange(5)
        if kind == 0:
            store.append_batch([message(number + extra) for extra in range(rng.randrange(1, 4))])
        elif kind == 1:
            sys_flag = rng.choice((TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))
            store.append(message(number, "half", sys_flag=sys_flag))
        else:
            store.append(
                message(number, rng.choice(("orders", "other")), rng.randrange(3), body=rng.randbytes(300))
            )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_copy_holds_what_the_master_holds(flush: str) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        master = open_store()
        fill(master, rng)
        copy = open_store(2, flush_disk_type=flush, broker_role="SLAVE")
        told: list[tuple[str, int, int]] = []
        copy.on_arrival(lambda topic, queue_id, end, code, told=told: told.append((topic, queue_id, end)))
        for at, data in pieces(master, rng):
            run = copy.raw_appender.append(at, data)
            assert run.end == copy.log.end == at + len(data)
        copy.flush_now()
        assert copy.log.end == master.log.end > 4 * FILE_BYTES
        for mine, theirs in zip(copy.log.segments, master.log.segments, strict=True):
            assert bytes(mine.file.buffer) == bytes(theirs.file.buffer)
        assert {key: queue.max_offset for key, queue in copy.queues.items() if queue.max_offset} == {
            key: queue.max_offset for key, queue in master.queues.items() if queue.max_offset
        }
        for key, queue in master.queues.items():
            for offset in range(queue.max_offset):
                assert copy.queues[key].entry(offset) == queue.entry(offset)
            assert [end for topic, queue_id, end in told if (topic, queue_id) == key] == list(
                range(1, queue.max_offset + 1)
            )
            assert copy.max_offset(*key) == queue.max_offset
        for number in (0, 17, 140):
            assert copy.query("orders", f"k{number}", count_max=9).count == (
                master.query("orders", f"k{number}", count_max=9).count
            )
        assert (copy.last_record_offset, copy.last_store_timestamp) == (
            master.last_record_offset,
            master.last_store_timestamp,
        )
        with pytest.raises(StoreNotWritable, match="slave"):
            copy.append(message())


def test_a_copy_may_begin_at_any_file() -> None:
    master = open_store()
    rng = random.Random(3)
    fill(master, rng)
    copy = open_store(2)
    for at, data in pieces(master, rng):
        if at >= 2 * FILE_BYTES:
            copy.raw_appender.append(at, data)
    assert copy.log.min_offset == 2 * FILE_BYTES
    assert copy.max_offset("orders", 0) == master.max_offset("orders", 0)
    assert copy.min_offset("orders", 0) > 0
    read = copy.get_messages("orders", 0, copy.min_offset("orders", 0), count_max=32)
    assert read.body == master.get_messages("orders", 0, copy.min_offset("orders", 0), count_max=32).body
    copy.append(message(7))  # it continues by itself
    assert copy.max_offset("orders", 0) == master.max_offset("orders", 0) + 1


def test_bytes_that_do_not_belong_there_change_nothing() -> None:
    master = open_store()
    results = [master.append(message(number)) for number in range(6)]
    copy = open_store(2)
    data = master.log.read(0, master.log.end)
    second = results[1].physical_offset
    copy.raw_appender.append(0, data[:second])
    turned = bytearray(data[second:])
    turned[90] ^= 1  # of a body
    skips = bytearray(data[second:])
    skips[20:28] = (4).to_bytes(8, "big")  # message 4 behind message 0
    for at, given in (
        (second + 1, data[second + 1 :]),  # not where the log ends
        (0, data),
        (second, data[second:-1]),  # not whole
        (second, data[second:] + b"\0"),
        (second, data[second:] + bytes(100)),
        (second, bytes(turned)),
        (second, bytes(skips)),
        (second, data[results[2].physical_offset :]),  # of another offset
        (second, b"\0\0\0\x10\xcb\xd4\x31\x94" + bytes(8)),  # a blank that does not reach the file's end
    ):
        with pytest.raises(RecordInvalid):
            copy.raw_appender.append(at, given)
        assert copy.log.end == second
        assert copy.queues["orders", 0].max_offset == 1
        assert bytes(copy.log.buffer[second : second + 8]) == bytes(8)
    copy.raw_appender.append(second, data[second:])
    assert copy.log.read(0, copy.log.end) == data


def test_a_copy_on_a_full_disk_changes_nothing() -> None:
    master = open_store()
    for number in range(30):
        master.append(message(number, body=bytes(500)))
    copy = open_store(2)
    rng = random.Random(1)
    disk = copy._files._disk
    assert isinstance(disk, SimulatedDisk)
    given = list(pieces(master, rng))
    disk.total_bytes = disk.used_bytes + 25_000
    stopped = 0
    for at, data in given:
        before = (copy.log.end, copy.queues["orders", 0].max_offset if copy.queues else 0)
        try:
            copy.raw_appender.append(at, data)
        except StoreFull:
            stopped += 1
            assert (copy.log.end, copy.queues["orders", 0].max_offset if copy.queues else 0) == before
            break
    assert stopped
