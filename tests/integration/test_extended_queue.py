"""Extended queue entries: a store that RocketMQ 5.5.0 wrote with them (tests/data/store/filter-extension) continues here,
and what we write has its form.

There: topic FilterTopic, one queue, mappedFileSizeConsumeQueueExt 4096. `early` (TagA, a=9) was stored before any
filter; then CG_one (a > 5) and CG_two (b = 'x' AND a BETWEEN 1 AND 20) came; m0..m11 with a=number, b=x for each third,
TagA for odd ones; n0..n129 with a=number and TagB.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from aerobee import Message
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, Sql
from aerobee.clock import ManualClock, SystemClock
from aerobee.message import decode_records, java_hash
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.log.stored_message import GetStatus, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.extended_queue import (
    ADDRESS_MAX,
    BitmapAccept,
    ExtendedQueue,
    ExtensionUnit,
    QueueExtension,
)
from aerobee.store.queue.queue_files import FilePool
from aerobee.testing.local_cluster import LocalCluster
from tests.waiting import wait_until

ARCHIVE = Path(__file__).parent.parent / "data" / "store" / "filter-extension.tar.gz"
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
SIZES = {
    "mapped_file_size_commit_log": 262_144,
    "mapped_file_size_consume_queue": 4_000,
    "mapped_file_size_consume_queue_ext": 4_096,
    "max_hash_slot_num": 500,
    "max_index_num": 2_000,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    return tmp_path / "filter-extension"


def open_store(directory: Path, **changes) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(directory), **{**SIZES, "enable_consume_queue_ext": True, **changes}
    )
    store = MessageStore(config, disk=RealDisk(), clock=SystemClock(), store_host=lambda: HOST)
    store.load()
    return store


def bodies(store: MessageStore, topic="FilterTopic", **how) -> list[str]:
    found, offset = [], 0
    while True:
        result = store.get_messages(topic, 0, offset, count_max=32, **how)
        if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
            return found
        found += [record.body.decode() for record in decode_records(result.body)]
        assert result.next_offset > offset
        offset = result.next_offset


def table_of(directory: Path, last_stored_ms: int = 0) -> FilterTable:
    table = FilterTable(
        expressions=Expressions(),
        live=LiveConfig(BrokerConfig(broker_name="b")),
        clock=ManualClock(),
        file=ConfigFile(directory / "config" / "consumerFilter.json", disk=RealDisk()),
        last_stored_ms=lambda: last_stored_ms,
    )
    table.load()
    return table


@pytest.mark.parametrize("enabled", [True, False])
async def test_tags_of_extended_entries_are_found(directory, enabled):
    store = open_store(directory, enable_consume_queue_ext=enabled)
    expected = ["early", *(f"m{n}" for n in range(1, 12, 2))]
    assert bodies(store, tag_codes=frozenset({java_hash("TagA")})) == expected
    assert len(bodies(store, tag_codes=frozenset({java_hash("TagB")}))) == 130
    assert len(bodies(store)) == 143
    await store.stop()


async def test_bitmaps_that_rocketmq_wrote_spare_reading_what_cannot_match(directory):
    store, table = open_store(directory), table_of(directory)
    looked_at = []

    def look(record: bytes) -> bool:
        looked_at.append(next(decode_records(record)).body.decode())
        return True

    found = table.find("CG_two", "FilterTopic")
    assert found is not None
    wanted = ["m3", "m6", "m9"]
    assert bodies(store, accept=BitmapAccept(look, found.may_take)) == ["early", *wanted]
    assert looked_at == ["early", *wanted], "what was stored before the filter was born is read"
    dead = table.find("CG_dead", "FilterTopic")
    assert dead is not None
    assert len(bodies(store, accept=BitmapAccept(look, dead.may_take))) == 143, "born after all of them"
    await store.stop()


def test_a_filter_of_a_corrected_clock_is_not_asked_of_older_entries(tmp_path: Path) -> None:
    """Store times never go back: those of messages before the filter are years ahead of the clock that was corrected."""
    ahead_ms = ManualClock().now_ms() + 365 * 86_400_000
    (tmp_path / "config").mkdir()
    table = table_of(tmp_path, last_stored_ms=ahead_ms)
    wants = SubscriptionData("t", "a > 1", expression_type="SQL92", sub_version=1)
    table.subscribed("other", [wants])
    table.subscribed("g", [wants])
    found = table.find("g", "t")
    assert found is not None
    of_before = bytes(table.bloom.bit_count // 8)  # no bits of this group: the message was not tested for it
    assert found.may_take(of_before, ahead_ms), "it is read and tested"
    assert not found.may_take(of_before, ahead_ms + 1)
    table.subscribed("g", None)
    assert found.is_dead


async def test_new_entries_have_the_bits_that_rocketmq_would_set(directory):
    store, table = open_store(directory), table_of(directory)
    store.set_bitmap(table.bitmap)
    for number in range(300):  # over the ends of queue and extension files
        properties = f"a\x01{number % 12}\x02b\x01x\x02TAGS\x01TagC\x02".encode()
        store.append(
            StoredMessage(
                topic="FilterTopic", queue_id=0, body=b"new%d" % number, properties=properties, born_host=HOST
            )
        )
    await store.stop()
    again = open_store(directory)
    queue = again.queues["FilterTopic", 0]
    assert isinstance(queue, ExtendedQueue)
    units = [queue._extension.get(code) for _, _, code in queue._raw(143, 300)]
    assert {unit.bitmap.hex() for unit in units if unit} == {
        "0000000000000000000000000000",
        "0000000040000001000000008000",  # CG_two, as in RocketMQ's own unit of m3
        "0000009040001001000000008000",  # both, as in m6
    }
    assert all(unit and unit.tags_code == java_hash("TagC") for unit in units)
    assert len(bodies(again, tag_codes=frozenset({java_hash("TagC")}))) == 300
    await again.stop()


async def test_a_queue_that_is_built_again_has_its_tags(directory):
    for name in ("consumequeue", "consumequeue_ext"):
        for path in sorted((directory / name).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    (directory / "abort").touch()
    store = open_store(directory)
    assert len(bodies(store, tag_codes=frozenset({java_hash("TagB")}))) == 130
    await store.stop()


def test_units_do_not_cross_files_and_leave_the_end_marked(tmp_path):
    pool = FilePool(RealDisk())
    extension = QueueExtension(str(tmp_path / "ext"), 100, pool)
    extension.load()
    unit = ExtensionUnit(5, 7, bytes(14))
    addresses = [extension.put(unit) for _ in range(5)]
    assert [address + (1 << 63) for address in addresses] == [0, 34, 100, 134, 200]
    assert all(address <= ADDRESS_MAX for address in addresses)
    assert all(extension.get(address) == unit for address in addresses)
    assert (tmp_path / "ext" / f"{0:020d}").read_bytes()[68:70] == b"\xff\xff"
    assert extension.get(addresses[0] + 1) is None
    assert extension.get(500 - (1 << 63)) is None
    extension.cut(addresses[2])
    assert extension.put(unit) == addresses[3]
    pool.close()


def test_the_file_of_filters_is_rocketmqs(directory):
    path = directory / "config" / "consumerFilter.json"
    table = table_of(directory)
    assert table.to_dict() == json.loads(path.read_text())
    one = table.find("CG_one", "FilterTopic")
    assert one is not None
    assert one.is_dead
    table.subscribed(
        "CG_one", [SubscriptionData("FilterTopic", "a > 5", sub_version=1 << 42, expression_type="SQL92")]
    )
    assert not one.is_dead
    assert one.client_version == 1 << 42
    table.subscribed("CG_one", None)
    assert table.prepare_save() is not None


async def test_a_broker_filters_by_bits_and_writes_its_table():
    store = {**SIZES, "enable_consume_queue_ext": True}
    settings = {"enable_property_filter": True, "enable_calc_filter_bit_map": True}
    async with LocalCluster(broker_config=settings, store_config=store) as cluster:
        await cluster.create_topic("orders", queues=1)
        seen = []
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with (
            Producer(cluster.nameserver_address, "PG") as producer,
            cluster.push_consumer(
                "G", {"orders": Sql("price > 5")}, lambda m: seen.append(m.body), config=config
            ),
        ):
            await cluster.advance_clock(1)
            for price in range(10):
                await producer.send(
                    Message("orders", b"%d" % price, properties={"price": str(price)}, tag="T")
                )
            await wait_until(lambda: len(seen) == 4)
            queue = cluster.broker().store.queues["orders", 0]
            assert isinstance(queue, ExtendedQueue)
            assert len({code for _, _, code in queue._raw(0, 10)}) == 10
        cluster.broker().save()
        written = json.loads((cluster.directory / "broker-a" / "config" / "consumerFilter.json").read_text())
        assert written["filterDataByTopic"]["orders"]["groupFilterData"]["G"]["expression"] == "price > 5"
        assert sorted(seen) == [b"6", b"7", b"8", b"9"]
