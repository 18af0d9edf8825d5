"""The native lane's hot path of delay levels against the handlers: the same frames leave the same records and replies.

A header with blanks between its parts is left for the handlers, one without is the hot path's.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee.broker.lane_choice import NATIVE, choose_lane
from aerobee.clock import AdvancingClock
from aerobee.message import decode_record
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.test_transaction_hot_path import HOT, SLOW, TOPIC, Wire

pytestmark = pytest.mark.skipif(
    choose_lane().name != NATIVE, reason="the Python lane leaves levels to the handlers"
)

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
)


def send(number: int, changes: dict[str, str]) -> dict[str, Any]:
    properties = {"UNIQ_KEY": f"FEDCBA98765432{number:04}", "WAIT": "true", **changes}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
    return {
        "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 2), "f": "0", "g": "1795219623949",
        "h": str(number), "i": text, "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip


async def life(separators: tuple[str, str], flush: str) -> tuple[list[Any], list[Any], dict[str, int]]:
    """Send all cases in one burst; return replies, records with their entries, and which keys were found."""
    async with LocalCluster(store_config={"flush_disk_type": flush}) as cluster:
        await cluster.create_topic(TOPIC, 2)
        wire = Wire(cluster, separators)
        await wire.open()
        frames = [wire.frame(310, send(n, case), b"body %d" % n) for n, case in enumerate(CASES)]
        frames.append(wire.frame(310, send(0, {"DELAY": "3"}), b"one way", oneway=True))
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
        ]
        wire.writer.close()
        told = [
            (reply.code, {k: v for k, v in (reply.ext or {}).items() if k not in ("msgId", "recallHandle")})
            for reply in replies
        ]
        for reply in told:
            if "FEDC" not in reply[1].get("transactionId", ""):
                reply[1].pop("transactionId", None)
    return told, records, dict(enumerate(keys))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_hot_path_and_handlers_leave_the_same(flush: str) -> None:
    hot, slow = await life(HOT, flush), await life(SLOW, flush)
    assert hot[0] == slow[0]
    assert sorted(hot[1], key=repr) == sorted(slow[1], key=repr)
    assert hot[2] == slow[2]
    assert sum(record[0] == "SCHEDULE_TOPIC_XXXX" for record in hot[1]) >= 8


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
            async with asyncio.timeout(20):
                while store.max_offset(TOPIC, 0) + store.max_offset(TOPIC, 1) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        clock.advance(1)
        await until_stored(20)
        clock.advance(4)
        await until_stored(40)
        wire.writer.close()
