"""The hot path of transactions, in both backends, against the handlers: the same frames leave the same records, replies and decisions.

A header with blanks between its parts is left for the handlers, one without is the hot path's.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import VARIABLE
from aerobee.message import decode_record
from aerobee.remoting.command import RemotingCommand
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.hot_path_wire import BACKENDS, HOT, SLOW, TOPIC, Wire


def half(number: int, **changes: str) -> dict[str, Any]:
    properties = {
        "KEYS": f"k{number} shared", "TRAN_MSG": "true", "UNIQ_KEY": f"FEDCBA98765432{number:04}", "WAIT": "true",
        "PGROUP": "PG", "TAGS": "x", **changes,
    }  # fmt: skip
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
    return {
        "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 2), "f": "4", "g": "1795219623949",
        "h": str(number), "i": text, "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip


def end(number: int, reply: RemotingCommand, decision: int, **changes: str) -> dict[str, Any]:
    ext = reply.ext or {}
    return {
        "producerGroup": "PG", "bname": "broker-a", "commitLogOffset": str(int(ext["msgId"][-16:], 16)),
        "topic": TOPIC, "msgId": ext["transactionId"], "tranStateTableOffset": ext["queueOffset"],
        "commitOrRollback": str(decision), "transactionId": ext["transactionId"], "fromTransactionCheck": "false",
        **changes,
    }  # fmt: skip


SPECIAL = {
    3: {"CHECK_IMMUNITY_TIME_IN_SECONDS": "30"},
    4: {"DELAY": "3"},
    5: {"TAGS": "", "KEYS": ""},
    6: {"colour": "grün", "TAGS": "标签"},
    7: {"WAIT": "false"},
    8: {"REAL_TOPIC": "secret", "REAL_QID": "1"},
    9: {"TRAN_MSG": "TRUE"},
}
WRONG = {
    10: {"producerGroup": "OTHER"},
    11: {"transactionId": "ANOTHER", "msgId": "ANOTHER"},
    12: {"tranStateTableOffset": "99"},
    13: {"commitLogOffset": "1"},
}


async def life(separators: tuple[str, str], flush: str) -> tuple[list[Any], list[Any], Any]:
    """Send halves in one burst and their ends in another; return replies, records and what is open."""
    async with LocalCluster(store_config={"flush_disk_type": flush}) as cluster:
        await cluster.create_topic(TOPIC, 2)
        wire = Wire(cluster, separators)
        await wire.open()
        numbers = range(20)
        wire.writer.write(
            b"".join(
                wire.frame(310, half(number, **SPECIAL.get(number, {})), b"body %d" % number)
                for number in numbers
            )
        )
        replies = await wire.replies(len(numbers))
        replies.sort(key=lambda reply: reply.opaque)
        frames = []
        for number, reply in zip(numbers, replies, strict=True):
            assert reply.code == 0, reply
            decision = (8, 12, 0)[number % 3] if number < 18 else 8
            frames.append(wire.frame(37, end(number, reply, decision, **WRONG.get(number, {})), oneway=True))
        frames += frames[:3]  # the same again
        frames.append(wire.frame(37, end(1, replies[1], 8), oneway=True))  # commit after rollback
        wire.writer.write(b"".join(frames) + wire.frame(28, {}))
        await wire.replies(1)
        broker = cluster.broker()
        broker.store.flush_now()  # with sync flush nothing is found by key before
        (part,) = [feature for feature in broker.features if feature.name == "transactions"]
        table = part.transaction_store.table  # type: ignore[attr-defined]
        open_now = sorted(transaction.queue_offset for transaction in table.by_key.values())
        counters = {name: text for name, text in part.runtime_info().items() if "Ms" not in name}
        keys = [
            len(broker.store.query(TOPIC, key, count_max=32).body) > 0
            for key in ("k0", "k6", "shared", "FEDCBA987654320000", "FEDCBA987654320001")
        ]
        records, at = [], 0
        while at < broker.store.log.end:
            size = int.from_bytes(broker.store.log.read(at, 4), "big")
            record = decode_record(broker.store.log.read(at, size))
            if "OP_HALF" not in record.topic:  # when they are written is a matter of time
                records.append(
                    (record.topic, record.queue_id, record.queue_offset, record.body, dict(record.properties),
                     record.flag, record.sys_flag, record.born_timestamp, at, record.prepared_transaction_offset)
                )  # fmt: skip
            at += size
        wire.writer.close()
        told = [
            (reply.code, {k: v for k, v in (reply.ext or {}).items() if k != "msgId"}, reply.remark)
            for reply in replies
        ]
    return told, records, (open_now, counters, keys)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_hot_path_and_handlers_leave_the_same(flush: str, backend: str) -> None:
    hot, slow = await life(HOT, flush), await life(SLOW, flush)
    assert hot[0] == slow[0]
    assert len(hot[1]) == len(slow[1])
    for ours, theirs in zip(hot[1], slow[1], strict=True):
        assert ours[:-2] == theirs[:-2]  # offsets in the log differ with the order of properties
    assert hot[2] == slow[2]
    for _, records, _ in (hot, slow):
        ids = {record[-2]: record[4]["UNIQ_KEY"] for record in records}
        for record in records:
            if record[0] == TOPIC:
                assert ids[record[-1]] == record[4]["UNIQ_KEY"]
    committed = [record for record in hot[1] if record[0] == TOPIC]
    assert len(committed) == len({record[4]["UNIQ_KEY"] for record in committed})
    assert {record[4]["__transactionId__"] for record in committed} == {
        record[4]["UNIQ_KEY"] for record in committed
    }


async def test_stream_of_sends_and_transactions_is_answered_whole(backend: str) -> None:
    """Ordinary sends, half messages and ends mixed in one read, and each frame cut in two once."""
    async with LocalCluster() as cluster:
        await cluster.create_topic(TOPIC, 2)
        wire = Wire(cluster, HOT)
        await wire.open()
        frames = []
        for number in range(60):
            ext = half(number)
            if number % 3 == 0:
                ext["f"] = "0"
                ext["i"] = ext["i"].replace("TRAN_MSG\x01true\x02", "").replace("PGROUP\x01PG\x02", "")
            frames.append(wire.frame(310, ext, b"x" * number))
        data = b"".join(frames)
        cut = 0
        for frame in frames[:20]:
            wire.writer.write(data[cut : cut + len(frame) // 2])
            await asyncio.sleep(0)
            cut += len(frame) // 2
        wire.writer.write(data[cut:])
        replies = await wire.replies(60)
        assert [reply.code for reply in replies] == [0] * 60
        assert len({reply.opaque for reply in replies}) == 60
        store = cluster.broker().store
        assert store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 40
        assert store.max_offset(TOPIC, 0) + store.max_offset(TOPIC, 1) == 20
        wire.writer.close()
