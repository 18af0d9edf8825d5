"""Every bit of a record's head, topic and properties, flipped on the way to a slave: refused, or stored as it was sent.

The body has a CRC; most other fields have none (docs/damage.md). What must hold: nothing is taken in part, a refusal leaves the log
as it was, and a slave that took the bytes has them after a restart, with every message of them in its queue. The native
appender and the Python one agree.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.clock import ManualClock
from aerobee.errors import RecordInvalid
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.message_store import MessageStore
from tests.abuse.damage import HOST, message, read_queue

COUNT, VICTIM = 4, 1
BODY_SIZE_AT, BODY_AT = 84, 88
BITS_OF_A_BYTE = (0, 3, 7)


def opened(root: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=16_384,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=32,
        max_index_num=100,
        commit_log_reserve_bytes=16_384,
    )
    store = MessageStore(config, disk=RealDisk(), clock=ManualClock(), store_host=lambda: HOST)
    store.load()
    return store


def masters_log(root: Path) -> tuple[bytes, list[int]]:
    """A log of COUNT records, and where in it the bytes of one are that no CRC covers."""
    store = opened(root)
    rng = random.Random(1)
    offsets = [store.append(message(rng, "orders", 0, number)).physical_offset for number in range(COUNT)]
    data = bytes(store.log.read(0, store.log.end))
    asyncio.run(store.abandon())
    begin, end = offsets[VICTIM], offsets[VICTIM + 1]
    behind_body = begin + BODY_AT + int.from_bytes(data[begin + BODY_SIZE_AT :][:4], "big")
    return data, [*range(begin, begin + BODY_AT), *range(behind_body, end)]


def taken(store: MessageStore, data: bytes, *, natively: bool) -> bool:
    """Whether a slave takes a master's bytes; it takes all of them or, of what is ordinary, whole records before the fault."""
    used = 0
    make = choose_backend().make_raw_appender
    try:
        if natively and make is not None:
            native = make(store)
            used = native.append(0, bytearray(data), 0)
        if used < len(data):
            store.raw_appender.append(used, data[used:])
    except RecordInvalid:
        return False
    return True


@pytest.mark.parametrize("natively", [False, True], ids=["python", "native"])
def test_each_bit_is_refused_or_stored_as_it_was_sent(tmp_path: Path, natively: bool) -> None:
    if natively and choose_backend().make_raw_appender is None:
        pytest.skip("no native code is installed")
    logging.disable(logging.CRITICAL)
    try:
        data, offsets = masters_log(tmp_path / "master")
        outcomes = {True: 0, False: 0}
        for offset in offsets:
            for bit in BITS_OF_A_BYTE:
                sent = bytearray(data)
                sent[offset] ^= 1 << bit
                root = tmp_path / "slave"
                store = opened(root)
                is_taken = taken(store, bytes(sent), natively=natively)
                end = store.log.end
                assert bytes(store.log.read(0, end)) == bytes(sent[:end])
                assert end == len(data) if is_taken else end <= offset
                store.flush_now()
                asyncio.run(store.abandon())
                again = opened(root)
                served = sum(len(read_queue(again, key)) for key in again.queues)
                assert again.log.end == end
                assert served == (COUNT if is_taken else (VICTIM if end else 0)), (offset, bit)
                asyncio.run(again.abandon())
                shutil.rmtree(root)
                outcomes[is_taken] += 1
    finally:
        logging.disable(logging.NOTSET)
    assert all(outcomes.values())
