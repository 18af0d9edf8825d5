"""What native code copies of a master's log is what RawAppender.append of the store copies: the log, the entries, the index, the notifications."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import NATIVE, choose_backend
from aerobee.broker.replication.raw_receiver import RawReceiver
from aerobee.errors import RecordInvalid, StoreFull
from aerobee.message import (
    BORN_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    encode_properties,
    encode_record,
)
from aerobee.store.index.index_file import INDEX_ENTRY
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.queue.consume_queue import QUEUE_OFFSET_MAX
from aerobee.system_names import SCHEDULE_TOPIC
from tests.rounds import rounds
from tests.unit.broker.raw_copies import FILE_BYTES, HOST, HOST_V6, Copy, cut, take

TOPICS = ("orders", "other", "主题", "l" * 140, SCHEDULE_TOPIC)
PROPERTIES = (
    b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d  z\x02TAGS\x01t%d\x02",
    b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d\x02DELAY\x01%d",
    b"TAGS\x01\x02TAGS\x01a\x01b\x02KEYS\x01%d\x02\x01%d\x02x\x01%d\x02",
    b"DELAY\x01-%d\x02UNIQ_KEY\x01\xe4\xb8\xbb%d\x02TAGS\x01\xe4\xb8\xbb%d",
    b"DELAY\x0100000000%d\x02UNIQ_KEY\x01\xff%d\x02KEYS\x01 %d",
    b"KEYS\x01one\x02KEYS\x01two%d\x02TAGS\x01%d\x02TAGS\x01%d\x02",
)

pytestmark = pytest.mark.skipif(choose_backend().name != NATIVE, reason="the native backend is not installed")


def record(physical_offset: int, queue_offset: int, *, topic: bytes = b"t", properties: bytes = b"") -> bytes:
    return encode_record(
        topic=topic, queue_id=0, queue_offset=queue_offset, physical_offset=physical_offset, body=b"x",
        properties=properties, born_host=HOST, store_host=HOST,
    )  # fmt: skip


def written(seed: int, count: int = 220) -> bytes:
    """The bytes of a master's log."""
    rng = random.Random(seed)
    master = Copy(natively=False, role="ASYNC_MASTER")
    for _ in range(count):
        master.clock.advance(rng.choice((0, 0, 0.001, 1.7, 60)))
        sys_flag = rng.choice((0, 0, 0, 0, TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))
        text = rng.choice(PROPERTIES) if rng.randrange(4) else b""
        master.store.append(
            StoredMessage(
                topic=rng.choice(TOPICS),
                queue_id=rng.randrange(3),
                body=rng.randbytes(rng.choice((0, 1, 90, 700))),
                properties=text % tuple(rng.randrange(25) for _ in range(text.count(b"%d"))),
                born_host=rng.choice((HOST, HOST_V6)),
                sys_flag=sys_flag,
            )
        )
    log = master.store.log
    assert log.end > count * FILE_BYTES // 80
    return b"".join(bytes(segment.file.buffer[: segment.end - segment.base]) for segment in log.segments)[
        : log.end
    ]


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_is_the_same(seed: int) -> None:
    data = written(seed)
    both = [Copy(natively=natively) for natively in (True, False)]
    for number, copy in enumerate(both):
        assert take(copy, cut(data, random.Random(seed if number else seed + 100))) == []
    native, python = both
    assert native.state() == python.state()
    assert native.store.log.end == len(data)
    assert native.heard() == python.heard()


def test_small_index_files_hold_the_same_entries() -> None:
    # Where a file ends depends on how many records came together; what all of them hold does not.
    data = written(5)
    found = []
    for natively in (True, False):
        copy = Copy(natively=natively, max_index_num=100)
        assert take(copy, cut(data, random.Random(natively))) == []
        assert len(copy.store.index.files) > 3
        found.append(
            [
                INDEX_ENTRY.unpack_from(file.buffer, file.entries_at + number * INDEX_ENTRY.size)[:2]
                for file in copy.store.index.files
                for number in range(1, file.count)
            ]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(3))
def test_plain_records_do_not_pass_through_python(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(seed)
    copy = Copy(natively=True)
    records = 0
    python = copy.store.raw_appender.append

    def count(*arguments: Any) -> Any:
        nonlocal records
        run = python(*arguments)
        records += len(run.records)
        return run

    monkeypatch.setattr(copy.store.raw_appender, "append", count)
    assert take(copy, cut(data, random.Random(seed))) == []
    # The first of each file of the log, of a queue's (20 entries) and of the index; texts that are no UTF-8.
    assert records < 110, records


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_what_is_held_back_is_held_back_natively(flush: str) -> None:
    data = written(3)
    native, python = (Copy(natively=natively, flush_disk_type=flush) for natively in (True, False))
    for copy in (native, python):
        copy.store.visibility.holds = True
        assert take(copy, cut(data, random.Random(1))) == []
        assert not copy.told
        copy.store.visibility.show_safe(2 * FILE_BYTES)
        assert copy.told
        copy.store.visibility.show_safe(len(data))
    assert native.state() == python.state()
    assert native.heard() == python.heard()


@pytest.mark.parametrize("seed", range(rounds(60)))
def test_hostile_bytes_are_judged_alike(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(written(seed % 3, 120))
    starts = [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + int.from_bytes(data[starts[-1] : starts[-1] + 4], "big"))
    at = rng.choice(starts[:-1])
    match seed % 6:
        case 0:  # a field of the head
            position = at + rng.randrange(92)
            data[position] ^= 1 << rng.randrange(8)
        case 1:  # anything
            for _ in range(3):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:  # a run of zeros: a sector that is gone
            data[at + 60 : at + 60 + rng.choice((4, 600))] = bytes(rng.choice((4, 600)))
        case 3:  # a size
            data[at : at + 4] = rng.choice((0, 7, 91, 1 << 27, 0xFFFFFFFF)).to_bytes(4, "big")
        case 4:  # another record's bytes
            other = rng.choice(starts[:-1])
            size = int.from_bytes(data[other : other + 4], "big")
            data[at : at + size] = data[other : other + size]
        case _:  # hosts of another kind
            data[at + 39] ^= BORN_HOST_V6
    pieces = cut(bytes(data), rng)
    native, python = (Copy(natively=natively) for natively in (True, False))
    assert take(native, pieces) == take(python, pieces)
    assert native.state() == python.state()
    assert native.heard() == python.heard()


def test_on_a_full_disk_both_backends_stop_and_resume() -> None:
    data = written(2)
    for natively in (True, False):
        copy = Copy(natively=natively)
        assert take(copy, [(0, data[:5_000])]) == []
        copy.disk.total_bytes = copy.disk.used_bytes + 3_000
        rest = data[copy.receiver.received :]
        with pytest.raises(StoreFull):
            copy.receiver.take(copy.receiver.received, rest)
        ends = copy.store.log.end
        assert (
            data[:ends]
            == b"".join(
                bytes(segment.file.buffer[: segment.end - segment.base])
                for segment in copy.store.log.segments
            )[:ends]
        )
        copy.disk.total_bytes = 1 << 40
        make = choose_backend().make_raw_appender
        assert make is not None
        copy.receiver = RawReceiver(copy.store, native=make(copy.store) if natively else None)
        assert take(copy, [(ends, data[ends:])]) == []
        whole = Copy(natively=False)
        assert take(whole, [(0, data)]) == []
        assert copy.state()["queues"] == whole.state()["queues"]


@pytest.mark.parametrize("natively", [True, False])
def test_no_backend_goes_beyond_the_last_offset_of_a_queue(natively: bool) -> None:
    copy = Copy(natively=natively)
    data = b""
    for offset in (QUEUE_OFFSET_MAX - 1, QUEUE_OFFSET_MAX, QUEUE_OFFSET_MAX + 1):
        data += record(len(data), offset)
    assert take(copy, [(0, data)]) == ["RecordInvalid"]
    assert copy.store.max_offset("t", 0) == QUEUE_OFFSET_MAX + 1
    assert copy.store.log.end == 2 * len(data) // 3


@pytest.mark.parametrize("natively", [True, False])
@pytest.mark.parametrize("offset", [QUEUE_OFFSET_MAX + 1, (1 << 63) - 1, -1])
def test_a_refused_record_of_a_new_queue_leaves_no_queue(natively: bool, offset: int) -> None:
    copy = Copy(natively=natively)
    data = record(0, 0)
    assert take(copy, [(0, data), (len(data), record(len(data), offset, topic=b"new"))]) == ["RecordInvalid"]
    assert list(copy.store.queues) == [("t", 0)]


def test_a_refused_lmq_leaves_no_queue_of_its_message() -> None:
    copy = Copy(natively=False, enable_lmq=True, enable_multi_dispatch=True)
    for names, offsets in (("%LMQ%a,%LMQ%b", f"0,{QUEUE_OFFSET_MAX + 1}"), ("%LMQ%a,%LMQ%/", "0,0")):
        text = encode_properties({"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets})
        assert take(copy, [(0, record(0, 0, properties=text.encode()))]) == ["RecordInvalid"]
        assert not copy.store.queues
        copy.receiver.begin_at(0)


def test_bytes_for_another_offset_are_refused() -> None:
    data = written(1, 120)
    copy = Copy(natively=True)
    copy.receiver.take(0, data[:4_000])
    before = copy.state()
    with pytest.raises(RecordInvalid, match="was expected"):
        copy.receiver.take(copy.receiver.received + 1, data[4_001:])
    assert copy.state() == before
