"""What was pending in a directory of a real RocketMQ 5.5.0 that had served every kind of message continues here.

`all-scenarios` ended with one message of level 18 that was not due, with every transaction decided, and with POP check
points in the revive topic that its broker had not read again: acknowledged ones, and one whose message was not. Directories
with open transactions and timers are in test_transaction_exchange.py and test_timers.py, the way back is in tests/interop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.clock import AdvancingClock
from aerobee.message import Record, decode_record
from tests.integration.store_archive import Archive
from tests.waiting import wait_until

LEVEL_18_DUE_MS = 1_795_219_612_091 + 7_200_000
HOURS_FOR_EVER = 1_000_000
RETRY_TOPIC = "%RETRY%CG_pop_TopicPop"
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
UNACKNOWLEDGED = 5  # in queue 0 of the revive topic


@asynccontextmanager
async def broker_at(archive: Archive) -> AsyncIterator[Broker]:
    store = archive.config(mapped_file_size_timer_log=1_048_576, file_reserved_time=HOURS_FOR_EVER)
    config = BrokerConfig(broker_name="broker-a", listen_port=0, bind_address="127.0.0.1")
    clock = AdvancingClock()
    clock.advance(max(0, LEVEL_18_DUE_MS + 1_000 - clock.now_ms()) / 1000)
    broker = Broker(config, store, clock=clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def stored(broker: Broker, topic: str) -> list[Record]:
    """Every record of a topic, in the order of the log."""
    found = []
    for (name, _), queue in broker.store.queues.items():
        if name == topic:
            for at in range(queue.max_offset):
                entry = queue.entry(at)
                assert isinstance(entry, tuple)
                data = broker.store.read_record(entry[0])
                assert data is not None
                found.append(decode_record(data))
    return sorted(found, key=lambda record: record.physical_offset)


def revived(broker: Broker) -> bool:
    """Whether every record of the revive topic is dealt with, and the group's offsets say so."""
    return all(
        broker.offsets.query(REVIVE_GROUP, REVIVE_TOPIC, queue_id) == queue.max_offset - 1
        for (topic, queue_id), queue in broker.store.queues.items()
        if topic == REVIVE_TOPIC
    )


async def test_level_is_delivered_once_and_nothing_that_was_settled_comes_again(tmp_path: Path) -> None:
    archive = Archive("all-scenarios", tmp_path)
    async with broker_at(archive) as broker:
        await wait_until(lambda: len(stored(broker, "TopicDelay")) == 3, "level 18 was delivered")
        assert stored(broker, "TopicDelay")[-1].body == b"level too large"
        await wait_until(lambda: revived(broker), "the revive topic was read")
        assert len(stored(broker, RETRY_TOPIC)) == 1
        committed = [record for record in stored(broker, "TopicTrans") if record.properties.get("PGROUP")]
    async with broker_at(archive) as broker:
        await wait_until(lambda: revived(broker), "the revive topic was read")
        assert len(stored(broker, "TopicDelay")) == 3
        assert len(stored(broker, RETRY_TOPIC)) == 1
        assert [
            record for record in stored(broker, "TopicTrans") if record.properties.get("PGROUP")
        ] == committed
        (transactions,) = [feature for feature in broker.features if feature.name == "transactions"]
        assert transactions.runtime_info()["openTransactions"] == "0"


async def test_check_point_that_rocketmq_left_is_handed_out_again_and_acknowledged_ones_are_not(
    tmp_path: Path,
) -> None:
    """As after a kill before RocketMQ had noted that it was through with the last check point of queue 0."""
    archive = Archive("all-scenarios", tmp_path)
    file = archive.root / "config" / "consumerOffset.json"
    text = file.read_text()
    at = text.index(f'"{REVIVE_TOPIC}@{REVIVE_GROUP}"')
    file.write_text(text[:at] + text[at:].replace(f"0:{UNACKNOWLEDGED}", "0:-1", 1))
    async with broker_at(archive) as broker:
        await wait_until(lambda: len(stored(broker, RETRY_TOPIC)) == 2, "the message is back")
        await wait_until(lambda: revived(broker), "the revive topic was read")
        before, after = stored(broker, RETRY_TOPIC)
        (point,) = [
            json.loads(record.body)
            for record in stored(broker, REVIVE_TOPIC)
            if (record.queue_id, record.queue_offset) == (0, UNACKNOWLEDGED)
        ]
        (message,) = [
            record
            for record in stored(broker, point["t"])
            if (record.queue_id, record.queue_offset) == (point["q"], point["so"])
        ]
        assert after.body == before.body == message.body
        assert after.unique_id == message.unique_id
        assert after.reconsume_times == before.reconsume_times == message.reconsume_times + 1
