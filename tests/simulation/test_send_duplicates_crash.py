"""Messages that are sent again over crashes and power losses: each key is stored once, an acknowledged one is there.

Each seed is one run: a producer sends keyed and other messages until they are acknowledged, repeats itself at random, and
the broker's store dies in between, on the disk that loses unsynced pages. Real parts: the store, SendDuplicates.
AEROBEE_SEEDS sets how many seeds run, AEROBEE_SEED picks one.
"""

from __future__ import annotations

import logging
import os

import pytest

from aerobee.broker.send.duplicate_window import DuplicateWindow
from aerobee.broker.send.send_duplicates import AlreadyStored, SendDuplicates
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.errors import StoreError
from aerobee.message import decode_record, encode_properties
from aerobee.store.log.stored_message import StoredMessage
from tests.simulation.store_world import HOST, World

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))
WINDOW_MS = 3_600_000
LIVES = 4
PARTS = 4


class KeyedWorld(World):
    """A store, and a producer that repeats itself."""

    def __init__(self, seed: int, *, sync: bool) -> None:
        super().__init__(seed, sync=sync)
        self.live = LiveConfig(BrokerConfig(broker_name="broker-a", dedup_window_millis=WINDOW_MS))
        self.keys_acked: set[str] = set()
        self.keys = [f"key-{number}" for number in range(12)]

    def begin(self) -> None:
        self.start()
        self.duplicates = SendDuplicates(live=self.live, clock=self.clock)
        DuplicateWindow(
            duplicates=self.duplicates, log_files=self.store.log, live=self.live, clock=self.clock
        ).load()

    def send(self, key: str) -> None:
        """One send, as SendCalls does it: looked up, stored, noted; acknowledged when it is durable."""
        self.number += 1
        properties = {"UNIQ_KEY": f"U{self.number}"} | ({"DEDUP_KEY": key} if key else {})
        try:
            noted = self.duplicates.check("orders", properties, 0)
        except AlreadyStored as repeated:
            first = repeated.first
            data = self.store.read_record(first.result.physical_offset)
            if data is not None:  # with sync flush no consumer reads it before it is durable
                record = decode_record(data)
                assert record.properties["DEDUP_KEY"] == key
                assert (record.unique_id, record.queue_offset) == (
                    first.unique_key,
                    first.result.queue_offset,
                )
            self.wait(key, first.result.end)
            return
        message = StoredMessage(
            topic="orders",
            queue_id=0,
            body=b"x" * self.rng.choice((10, 300, 2000)),
            properties=encode_properties(properties).encode(),
            born_host=HOST,
        )
        result = self.store.append(message)
        if noted:
            self.duplicates.note("orders", noted, result, 0, properties["UNIQ_KEY"])
            self.wait(key, result.end)

    def wait(self, key: str, end: int) -> None:
        def answered(is_durable: bool) -> None:
            if is_durable:
                self.keys_acked.add(key)

        (self.store.wait_durable if self.config.is_sync_flush else self.store.flushed.when)(end, answered)

    def live_on(self) -> None:
        for _ in range(self.rng.randint(5, 30)):
            self.clock.advance(self.rng.choice((0, 0.001, 2)))
            self.send(self.rng.choice(self.keys) if self.rng.random() < 0.7 else "")
            if self.rng.random() < 0.2:
                self.store.flush_now()

    def stored_keys(self) -> list[str]:
        found = []
        for place in sorted(self.places()):
            record = decode_record(self.store.read_record(place) or b"")
            found.append(record.properties.get("DEDUP_KEY", ""))
        return [key for key in found if key]


def run(seed: int) -> None:
    world = KeyedWorld(seed, sync=bool(seed % 2))
    world.begin()
    for _ in range(LIVES):
        world.live_on()
        world.die()
        try:
            world.begin()
        except StoreError:
            return  # it refuses to start and says which bytes are bad: test_store_crash.py holds it to that
        stored = world.stored_keys()
        assert len(stored) == len(set(stored)), f"seed {seed}: a key is stored twice: {stored}"
        lost = world.keys_acked - set(stored)
        assert not lost, f"seed {seed}: {lost} were acknowledged and are gone"
        assert len(world.duplicates) == len(stored), f"seed {seed}: keys in memory and in the log differ"
    for key in world.keys:
        world.send(key)
        world.send(key)
    world.store.flush_now()
    assert sorted(world.stored_keys()) == sorted(world.keys)


@pytest.mark.parametrize("part", range(PARTS))
def test_each_key_is_stored_once_whatever_dies(part: int) -> None:
    logging.disable(logging.CRITICAL)
    try:
        for seed in [FIRST_SEED] if FIRST_SEED else range(1, SEEDS + 1):
            if seed % PARTS == part:
                run(seed)
    finally:
        logging.disable(logging.NOTSET)


def test_a_load_that_reads_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DuplicateWindow, "load", lambda self: None)
    noticed = 0
    for seed in range(1, 50):
        try:
            run(seed)
        except AssertionError:
            noticed += 1
    assert noticed > 10
