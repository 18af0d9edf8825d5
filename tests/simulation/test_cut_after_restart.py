"""A cut of the log at a broker with controllers that was killed before: consumers see its log up to the confirm offset of the last
checkpoint, and the clean-up of the cut reads all of it.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.replication.after_cut import AfterCut
from aerobee.clock import ManualClock
from aerobee.message import encode_properties
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.source_pointer import source_pointer
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system_names import SCHEDULE_TOPIC
from tests.simulation.store_world import InlineExecutor

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
LEVEL = 3


class Runs:
    """The stores of successive runs of one broker, on one disk."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(random.Random(1))
        self.levels = {LEVEL: 1}
        self.config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=65_536,
            mapped_file_size_consume_queue=2_000,
            message_index_enable=False,
        )

    def start(self) -> MessageStore:
        self.disk.crash()
        store = MessageStore(
            self.config,
            disk=self.disk,
            clock=ManualClock(),
            executor=InlineExecutor(),
            store_host=lambda: HOST,
            needs_confirmation=True,
        )
        store.load()
        return store

    def after_cut(self, store: MessageStore) -> AfterCut:
        """The clean-up with the progress of the earlier run, which delivered the first message of the level."""
        unused: Any = SimpleNamespace()
        return AfterCut(
            store=store,
            topics=unused,
            offsets=ConsumerOffsets(clock=ManualClock()),
            schedule=cast(Any, SimpleNamespace(offsets=self.levels)),
            escaped=unused,
            disk=self.disk,
            clock=ManualClock(),
            config_file=lambda name: unused,
            revive_topic="rmq_sys_REVIVE_LOG_c",
        )


def append(store: MessageStore, topic: str, queue_id: int, source_offset: int = -1) -> int:
    """A message, or the delivery of the one at `source_offset`; the physical offset of its record."""
    message = StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=b"x",
        properties=encode_properties({"UNIQ_KEY": "k"}).encode(),
        born_host=HOST,
        born_timestamp=0,
    )
    if source_offset >= 0:
        message.prepared_transaction_offset = source_pointer(source_offset)
    begin = store.log.end
    store.append(message)
    store.flush_now()
    return begin


async def cut(store: MessageStore, start: int) -> None:
    await store.start()
    await store.cut_to(start)
    await store.abandon()


@pytest.mark.parametrize("is_killed_again", [False, True])
def test_a_level_goes_back_whatever_consumers_see(is_killed_again: bool) -> None:
    runs = Runs()
    store = runs.start()
    waiting = append(store, SCHEDULE_TOPIC, LEVEL - 1)
    delivery = append(store, "orders", 0, waiting)
    store.durability.confirm(delivery)
    store = runs.start()
    assert store.readable_offset <= waiting, "the checkpoint is older"
    asyncio.run(cut(store, delivery))
    if is_killed_again:
        store = runs.start()
        assert store.pending_cut == delivery
    for _ in runs.after_cut(store)._lowering(delivery):
        pass
    assert runs.levels == {LEVEL: 0}, "no master delivers the message"
