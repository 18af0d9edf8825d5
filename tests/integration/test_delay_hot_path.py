"""The hot path of delay levels and timers, in both backends, against the handlers: the same frames leave the same records
and replies.

A header with blanks between its parts is left for the handlers, one without is the hot path's.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import VARIABLE
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.timer_properties import due_time, slot_time
from aerobee.clock import AdvancingClock
from aerobee.message import decode_record
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.recall_handle import decode_recall_handle
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.hot_path_wire import BACKENDS, HOT, SLOW, TOPIC, Wire
from tests.waiting import wait_until

NEXT_HOUR_MS = (int(time.time()) + 3_600) * 1_000

CASES: tuple[dict[str, str], ...] = (
    {"DELAY": "1"},
    {"DELAY": "1", "KEYS": "a b", "TAGS": "x"},
    {"DELAY": "18"},
    {"DELAY": "19"},
    {"DELAY": "0"},
    {"DELAY": "01"},
    {"DELAY": "-1"},
    {"DELAY": "x"},
    {"DELAY": "99999999999999999999"},
    {"DELAY": "2", "colour": "grün", "TAGS": "标签"},
    {"DELAY": "2", "WAIT": "false"},
    {"DELAY": "2", "TIMER_DELAY_MS": "3000"},
    {"DELAY": "2", "TRAN_MSG": "true", "PGROUP": "PG"},
    {"DELAY": "2", "PGROUP": "PG"},
    {"DELAY": "2", "REAL_TOPIC": "secret"},
    {"UNIQ_KEY": "", "DELAY": "2"},
    {"TIMER_DELAY_MS": "5000"},
    {"TIMER_DELAY_MS": "5000", "KEYS": "a c", "TAGS": "标签"},
    {"TIMER_DELAY_MS": "0007000", "WAIT": "false"},
    {"TIMER_DELAY_MS": "0"},
    {"TIMER_DELAY_MS": "x"},
    {"TIMER_DELAY_MS": "-5"},
    {"TIMER_DELAY_MS": "9" * 18},
    {"TIMER_DELAY_MS": "9" * 19},
    {"TIMER_DELAY_SEC": "7"},
    {"TIMER_DELAY_SEC": "99999999"},
    {"TIMER_DELAY_SEC": "9" * 18},
    {"TIMER_DELIVER_MS": str(NEXT_HOUR_MS)},
    {"TIMER_DELIVER_MS": str(NEXT_HOUR_MS + 1)},
    {"TIMER_DELIVER_MS": str(NEXT_HOUR_MS - 1)},
    {"TIMER_DELIVER_MS": "1000"},
    {"TIMER_DELIVER_MS": str(NEXT_HOUR_MS), "TIMER_DELAY_SEC": "7"},
    {"TIMER_DELIVER_MS": str(NEXT_HOUR_MS), "TIMER_DEL_UNIQKEY": "FEDC"},
    {"TIMER_DELIVER_MS": str(NEXT_HOUR_MS), "TIMER_OUT_MS": "5"},
    {"TIMER_DELIVER_MS": str(NEXT_HOUR_MS), "TRAN_MSG": "true", "PGROUP": "PG"},
    {"TIMER_DELIVER_MS": str(NEXT_HOUR_MS), "colour": "x" * 40_000},
)
TIMER_RECORDS = 10  # of them, with one-way ones


def send(number: int, changes: dict[str, str]) -> dict[str, Any]:
    properties = {"UNIQ_KEY": f"FEDCBA98765432{number:04}", "WAIT": "true", **changes}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
    return {
        "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 2), "f": "0", "g": "1795219623949",
        "h": str(number), "i": text, "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip


def check_slot(topic: str, properties: dict[str, str], store_timestamp: int) -> None:
    """That the slot is the one of the delay; it is taken out, for it depends on the time of storing."""
    if topic == "rmq_sys_wheel_timer":
        out_ms = int(properties.pop("TIMER_OUT_MS"))
        due = due_time(properties, out_ms, store_timestamp=store_timestamp, precision_ms=1_000)
        assert out_ms == slot_time(due, 1_000)
        assert out_ms < due < out_ms + 1_001


def check_handle(broker_name: str, reply: RemotingCommand, store: MessageStore) -> None:
    """That a recall handle names the record that was stored."""
    ext = reply.ext or {}
    if "recallHandle" in ext:
        record = decode_record(store.read_record(int(ext["msgId"][-16:], 16)) or b"")
        handle = decode_recall_handle(ext["recallHandle"])
        assert (handle.topic, handle.broker_name, handle.unique_key) == (
            TOPIC,
            broker_name,
            ext["transactionId"],
        )
        assert handle.timestamp_ms == int(record.properties["TIMER_OUT_MS"]) + 1
        assert record.topic == "rmq_sys_wheel_timer"


async def life(separators: tuple[str, str], flush: str) -> tuple[list[Any], list[Any], dict[str, int]]:
    """Send all cases in one burst; return replies, records with their entries, and which keys were found."""
    async with LocalCluster(store_config={"flush_disk_type": flush}) as cluster:
        await cluster.create_topic(TOPIC, 2)
        wire = Wire(cluster, separators)
        await wire.open()
        frames = [wire.frame(310, send(n, case), b"body %d" % n) for n, case in enumerate(CASES)]
        frames.append(wire.frame(310, send(0, {"DELAY": "3"}), b"one way", oneway=True))
        frames.append(wire.frame(310, send(0, {"TIMER_DELAY_SEC": "9"}), b"one way", oneway=True))
        wire.writer.write(b"".join(frames) + wire.frame(28, {}))
        replies = sorted(await wire.replies(len(CASES) + 1), key=lambda reply: reply.opaque)[:-1]
        broker = cluster.broker()
        store = broker.store
        store.flush_now()
        entries = {}
        for (topic, _), queue in store.queues.items():
            for at in range(queue.max_offset):
                physical_offset, size, code = queue.entry(at)  # type: ignore[misc]
                record = decode_record(store.read_record(physical_offset) or b"")
                due = code - record.store_timestamp if topic.startswith("SCHEDULE") else code
                entries[physical_offset] = (due, size)
        records, at = [], 0
        while at < store.log.end:
            record = decode_record(store.log.read(at, int.from_bytes(store.log.read(at, 4), "big")))
            properties = dict(record.properties)
            if "TIMER_DELAY_MS" in properties or "TIMER_DELAY_SEC" in properties:
                check_slot(record.topic, properties, record.store_timestamp)
            if "FEDC" not in properties.get("UNIQ_KEY", ""):
                properties.pop("UNIQ_KEY", None)  # made by the broker
            records.append(
                (record.topic, record.queue_id, record.queue_offset, record.body, properties, record.flag,
                 record.sys_flag, record.born_timestamp, record.reconsume_times, entries.get(at))
            )  # fmt: skip
            at += int.from_bytes(store.log.read(at, 4), "big")
        keys = [
            len(store.query("SCHEDULE_TOPIC_XXXX", key, count_max=32).body) > 0
            for key in ("a", "b", "FEDCBA987654320000")
        ] + [len(store.query("rmq_sys_wheel_timer", key, count_max=32).body) > 0 for key in ("a", "c")]
        wire.writer.close()
        for reply in replies:
            check_handle(broker.identity.name, reply, store)
        told = [
            (
                reply.code,
                {k: k if k == "recallHandle" else v for k, v in (reply.ext or {}).items() if k != "msgId"},
            )
            for reply in replies
        ]
        for reply in told:
            if "FEDC" not in reply[1].get("transactionId", ""):
                reply[1].pop("transactionId", None)
    return told, records, dict(enumerate(keys))


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_hot_path_and_handlers_leave_the_same(flush: str) -> None:
    hot, slow = await life(HOT, flush), await life(SLOW, flush)
    assert hot[0] == slow[0]
    assert sorted(hot[1], key=repr) == sorted(slow[1], key=repr)
    assert hot[2] == slow[2]
    assert sum(record[0] == "SCHEDULE_TOPIC_XXXX" for record in hot[1]) >= 8
    assert sum(record[0] == "rmq_sys_wheel_timer" for record in hot[1]) == TIMER_RECORDS


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_levels_of_one_burst_are_delivered_in_time(flush: str) -> None:
    async with LocalCluster(store_config={"flush_disk_type": flush}) as cluster:
        await cluster.create_topic(TOPIC, 2)
        wire = Wire(cluster, HOT)
        await wire.open()
        wire.writer.write(
            b"".join(wire.frame(310, send(n, {"DELAY": str(1 + n % 2)}), b"x") for n in range(40))
        )
        await wire.replies(40)
        store, clock = cluster.broker().store, cluster.clock
        assert isinstance(clock, AdvancingClock)

        async def until_stored(count: int) -> None:
            await wait_until(lambda: store.max_offset(TOPIC, 0) + store.max_offset(TOPIC, 1) >= count)

        clock.advance(1)
        await until_stored(20)
        clock.advance(4)
        await until_stored(40)
        wire.writer.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_timers_of_one_burst_are_delivered_in_time_and_the_handle_recalls(
    flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_handler: list[str] = []
    put = MessageWriter.put

    def counted(self: MessageWriter, message: StoredMessage, properties: dict[str, str]) -> AppendResult:
        by_handler.append(message.topic)
        return put(self, message, properties)

    monkeypatch.setattr(MessageWriter, "put", counted)
    async with LocalCluster(
        broker_config={"recall_message_enable": True}, store_config={"flush_disk_type": flush}
    ) as cluster:
        await cluster.create_topic(TOPIC, 2)
        wire = Wire(cluster, HOT)
        await wire.open()
        due_ms = cluster.clock.now_ms() + 5_000
        wire.writer.write(
            b"".join(
                wire.frame(310, send(n, {"TIMER_DELIVER_MS": str(due_ms + n % 2 * 3_000)}), b"x")
                for n in range(40)
            )
        )
        replies = sorted(await wire.replies(40), key=lambda reply: reply.opaque)
        store, clock = cluster.broker().store, cluster.clock
        assert isinstance(clock, AdvancingClock)
        handle = (replies[3].ext or {})["recallHandle"]
        wire.writer.write(wire.frame(370, {"topic": TOPIC, "recallHandle": handle, "producerGroup": "PG"}))
        assert (await wire.replies(1))[0].code == 0

        async def until_stored(count: int) -> None:
            await wait_until(lambda: store.max_offset(TOPIC, 0) + store.max_offset(TOPIC, 1) >= count)

        assert store.max_offset(TOPIC, 0) == store.max_offset(TOPIC, 1) == 0
        clock.advance(5)
        await until_stored(20)
        assert store.max_offset(TOPIC, 1) == 0
        clock.advance(3)
        await until_stored(39)
        assert by_handler == [TOPIC]  # the recall alone
        wire.writer.close()
