"""Reads of a queue whose records are hot: the same bytes whatever their layout, and nothing that is not there."""

import random
import struct
from collections.abc import Callable

import pytest

from aerobee.clock import ManualClock
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import GetStatus, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.consume_queue import ENTRY_BYTES, ConsumeQueue

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
COUNT = 40
OWN_SIZE, OWN_OFFSET = (0, struct.Struct(">i")), (28, struct.Struct(">q"))

# queue and body size of each message; those of queue 0 are read
LAYOUTS: dict[str, Callable[[int], tuple[int, int]]] = {
    "back to back": lambda number: (0, 100),
    "in turn": lambda number: (number % 4, 100),
    "of one size, anywhere": lambda number: (number * number % 3, 100),
    "of all sizes": lambda number: (number % 2, number * 37 % 300),
}


@pytest.fixture(params=LAYOUTS)
def store(request: pytest.FixtureRequest) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=65_536,
        mapped_file_size_consume_queue=ENTRY_BYTES * 1_000,
        max_hash_slot_num=10,
        max_index_num=1_000,
    )
    store = MessageStore(
        config, disk=SimulatedDisk(random.Random(1)), clock=ManualClock(), store_host=lambda: HOST
    )
    store.load()
    layout, number = LAYOUTS[request.param], 0
    while store.max_offset("T", 0) < COUNT:
        queue_id, size = layout(number)
        store.append(
            StoredMessage(topic="T", queue_id=queue_id, body=bytes(size), properties=b"", born_host=HOST)
        )
        number += 1
    return store


def read_one_by_one(store: MessageStore, stop: int) -> None:
    for offset in range(stop):
        store.get_messages("T", 0, offset, count_max=1)


def queue_of(store: MessageStore) -> ConsumeQueue:
    queue = store.queue("T", 0)
    assert isinstance(queue, ConsumeQueue)
    return queue


@pytest.mark.parametrize(
    ("offset", "count"), [(0, 32), (7, 32), (3, 2), (5, 1), (COUNT - 1, 32), (COUNT - 3, 32)]
)
def test_young_records_come_as_they_are_in_the_log(store: MessageStore, offset: int, count: int) -> None:
    queue = queue_of(store)
    found = queue.entries(offset, count)
    expected = b"".join(store.log.read(at, size) for at, size, _ in found)
    assert store.reader.hot_run(queue, offset, count) == (expected, len(found))
    result = store.get_messages("T", 0, offset, count_max=count)
    assert (result.status, result.body, result.count) == (GetStatus.FOUND, expected, len(found))
    assert result.next_offset == offset + len(found)


def served(store: MessageStore) -> list[bytes]:
    """What a consumer gets, one by one."""
    found: list[bytes] = []
    offset = 0
    while offset < store.max_offset("T", 0):
        result = store.get_messages("T", 0, offset, count_max=1)
        assert result.next_offset > offset
        found += [result.body] if result.count else []
        offset = result.next_offset
    return found


INDEXES = (0, 1, 16, 31)


@pytest.mark.parametrize("change", [-65_536, -256, -1, 1, 3, 0x7FFF_0000])
@pytest.mark.parametrize(
    "what", ["entry's offset", "entry's size", "record's size", "record's offset", "both offsets"]
)
def test_a_record_that_is_not_what_its_entry_says_is_not_given(
    store: MessageStore, what: str, change: int
) -> None:
    queue = queue_of(store)
    intact = [store.log.read(at, record_size) for at, record_size, _ in queue.entries(0, COUNT)]
    for index in INDEXES:
        records = list(intact)
        physical_offset, size, code = queue.entries(index, 1)[0]
        segment = store.log.segment_at(physical_offset)
        assert segment is not None
        start = physical_offset - segment.base
        if what in ("entry's offset", "both offsets"):
            queue.rewrite_entry(index, physical_offset + change, size, code)
        elif what == "entry's size":
            queue.rewrite_entry(index, physical_offset, min(size + change, 0x7FFFFFFF), code)
        if what in ("record's size", "record's offset", "both offsets"):
            at, number = OWN_SIZE if what == "record's size" else OWN_OFFSET
            (value,) = number.unpack_from(segment.file.buffer, start + at)
            number.pack_into(segment.file.buffer, start + at, min(value + change, 0x7FFFFFFF))
        run = store.reader.hot_run(queue, 0, 32)
        # More than a reply holds: the records before it.
        if what == "entry's size" and change == 0x7FFF_0000 and index:
            assert run == (b"".join(records[:index]), index), index
        else:
            assert run is None, index
        # A wrong entry is written again from the log; a damaged record is passed over, alone.
        if not what.startswith("entry"):
            del records[index]
        assert served(store) == records, index
        segment.file.buffer[start : start + size] = intact[index]
        queue.rewrite_entry(index, physical_offset, size, code)
        assert served(store) == intact


def test_an_entry_of_another_record_of_the_same_size_is_not_followed_unseen(store: MessageStore) -> None:
    queue = queue_of(store)
    entries = queue.entries(0, 32)
    for index, other in ((5, 6), (6, 5)):
        queue.rewrite_entry(index, *entries[other])
    found = queue.entries(0, 32)
    expected = b"".join(store.log.read(at, size) for at, size, _ in found)
    run = store.reader.hot_run(queue, 0, 32)
    assert run is None or run == (expected, 32)
