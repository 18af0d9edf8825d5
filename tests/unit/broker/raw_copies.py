"""Stores that copy a log with each backend."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.broker.replication.raw_receiver import RawReceiver
from aerobee.clock import ManualClock
from aerobee.errors import AerobeeError
from aerobee.message import (
    pack_host,
)
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.message_store import MessageStore
from tests.simulation.store_world import InlineExecutor

HOST, HOST_V6 = pack_host("127.0.0.1", 10_911), pack_host("2001:db8::1", 7)
FILE_BYTES = 16_384


Told = dict[tuple[str, int], list[tuple[int, int]]]


def noting(told: Told) -> Callable[[str, int, int, int], None]:
    """What a store calls for arrivals. It holds no Copy: the native appender holds the store, out of the collector's sight, and a
    cycle through both would keep megabytes of each test until the end."""

    def on_arrival(topic: str, queue_id: int, end: int, code: int) -> None:
        told.setdefault((topic, queue_id), []).append((end, code))

    return on_arrival


class Copy:
    """A store that copies a log natively, or by the reference implementation."""

    def __init__(
        self, *, natively: bool, role: str = "SLAVE", disk: SimulatedDisk | None = None, **settings: Any
    ) -> None:
        self.disk = disk or SimulatedDisk(random.Random(1))
        self.clock = ManualClock(1_700_000_000_000)
        self.store = MessageStore(
            StoreConfig(
                **{
                    "store_path_root_dir": "/store",
                    "mapped_file_size_commit_log": FILE_BYTES,
                    "mapped_file_size_consume_queue": 400,
                    "max_hash_slot_num": 64,
                    "max_index_num": 5_000,
                    "commit_log_reserve_bytes": 1_024,
                    "broker_role": role,
                    **settings,
                }
            ),
            disk=self.disk,
            clock=self.clock,
            executor=InlineExecutor(),
            store_host=lambda: HOST,
        )
        self.store.load()
        self.told: Told = {}
        self.store.on_arrival(noting(self.told))
        make = choose_backend().make_raw_appender
        if natively and make is None:
            pytest.skip("no native backend is built")
        self.receiver = RawReceiver(self.store, native=make(self.store) if natively and make else None)

    def heard(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Per queue, of consecutive notices with one code the last."""
        return {
            key: [
                notice
                for number, notice in enumerate(notices)
                if number + 1 == len(notices) or notices[number + 1][1] != notice[1]
            ]
            for key, notices in self.told.items()
        }

    def state(self) -> dict[str, Any]:
        """Everything of the store that its readers see, and what its files hold."""
        store = self.store
        return {
            "end": store.log.end,
            "log": [bytes(segment.file.buffer) for segment in store.log.segments],
            "queues": {
                key: (
                    queue.min_offset,
                    queue.max_offset,
                    queue.readable_max,
                    queue.unsynced_from,
                    [queue.entry(offset) for offset in range(queue.min_offset, queue.max_offset)],
                )
                for key, queue in store.queues.items()
                if queue.max_offset
            },
            "index": [
                (
                    bytes(file.buffer[40 : file.entries_at + file.count * 20]),
                    (file.begin_timestamp, file.end_timestamp),
                    (file.begin_physical_offset, file.end_physical_offset),
                    (file.used_slots, file.count, file.dirty_from),
                    bytes(file.buffer[:40]),
                )
                for file in store.index.files
            ],
            "newest": (store.last_record_offset, store.last_store_timestamp),
        }


def cut(data: bytes, rng: random.Random) -> list[tuple[int, bytes]]:
    """The bytes as a connection gives them: in pieces of any length."""
    pieces, at = [], 0
    while at < len(data):
        size = rng.choice((1, 7, 200, 3_000, 40_000))
        pieces.append((at, data[at : at + size]))
        at += size
    return pieces


def take(copy: Copy, pieces: list[tuple[int, bytes]]) -> list[str]:
    """What was raised, by type; the first error ends a connection."""
    for at, piece in pieces:
        try:
            copy.receiver.take(at, piece)
        except AerobeeError as error:
            return [type(error).__name__]
    return []
