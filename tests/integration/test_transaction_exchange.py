"""Transactions exchanged with RocketMQ 5.5.0: its client's captured frames replayed, and its store directories continued."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.clock import AdvancingClock
from aerobee.message import Record, decode_record, decode_records
from aerobee.network import AsyncioNetwork
from aerobee.remoting.body.heartbeat import HeartbeatData, ProducerData
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.frame import decode_frame
from aerobee.store.files.config import StoreConfig
from tests.captures import captured
from tests.integration.broker_calls import STORE, pull_request
from tests.integration.store_archive import Archive
from tests.waiting import wait_until

HOURS_FOR_EVER = 10_000_000  # the archives' messages grow old


class Peer:
    """A producer group's client: keeps the checks that arrive, answers as configured."""

    def __init__(self, clock: AdvancingClock) -> None:
        self.checks: list[tuple[Connection, RemotingCommand]] = []
        self.client = RemotingClient(clock=clock, network=AsyncioNetwork(), handlers={39: self._asked})

    def _asked(self, connection: Connection, request: RemotingCommand) -> None:
        self.checks.append((connection, request))

    async def join(self, address: str, group: str) -> None:
        body = HeartbeatData("10.0.0.1@1", (ProducerData(group),), ()).encode()
        assert (await self.client.invoke(address, RemotingCommand(34, {}, body))).code == 0

    def answer(self, number: int, decision: int) -> None:
        connection, check = self.checks[number]
        ext = check.ext or {}
        record = decode_record(check.body)
        connection.invoke_oneway(
            RemotingCommand(
                37,
                {
                    "producerGroup": record.properties["PGROUP"],
                    "tranStateTableOffset": ext["tranStateTableOffset"],
                    "commitLogOffset": ext["commitLogOffset"],
                    "commitOrRollback": str(decision),
                    "fromTransactionCheck": "true",
                    "msgId": ext["msgId"],
                    "transactionId": ext["transactionId"],
                },
                flag=FLAG_ONEWAY,
            )
        )


@asynccontextmanager
async def broker_at(path: Path, store: dict[str, Any], **config: Any) -> AsyncIterator[tuple[Broker, Peer]]:
    clock = AdvancingClock()
    fields = {"bind_address": "127.0.0.1", "broker_ip1": "127.0.0.1", "listen_port": 0, **config}
    broker = Broker(
        BrokerConfig(broker_name="broker-a", **fields),
        StoreConfig(store_path_root_dir=str(path), file_reserved_time=HOURS_FOR_EVER, **store),
        clock=clock,
    )
    await broker.start()
    peer = Peer(clock)
    try:
        yield broker, peer
    finally:
        await peer.client.close()
        await broker.stop()


async def advance(broker: Broker, seconds: float) -> None:
    clock = broker.clock
    assert isinstance(clock, AdvancingClock)
    clock.advance(seconds)
    await asyncio.sleep(0)


async def records(peer: Peer, broker: Broker, topic: str, queue: int = 0) -> list[Record]:
    reply = await peer.client.invoke(broker.address, pull_request(topic, queue=queue))
    return list(decode_records(reply.body)) if reply.code == 0 else []


# --- frames


@pytest.mark.parametrize("capture", ["java-produce-trans", "java-binary-trans"])
async def test_captured_java_client_is_served_as_rocketmq_served_it(capture: str, tmp_path: Path) -> None:
    """Its half messages and ends, with the offsets of our answers in place of those of the capture."""
    frames = [frame for frame in captured(capture) if frame.tap == "broker"]
    replies = {
        decode_frame(frame.data).opaque: decode_frame(frame.data)
        for frame in frames
        if frame.is_reply and frame.request_code == 310
    }
    ends: dict[str, list[int]] = {}
    async with broker_at(
        tmp_path,
        STORE,
        transaction_time_out=2_000,
        transaction_check_interval=4_000,
        auto_create_topic_enable=True,
    ) as (broker, peer):
        await peer.join(broker.address, "PG_trans")
        positions: dict[str, dict[str, str]] = {}
        for frame in frames:
            if frame.is_reply or frame.request_code not in (310, 37):
                continue
            request = decode_frame(frame.data)
            ext = dict(request.ext or {})
            if request.code == 310:
                theirs = replies[request.opaque].ext or {}
                reply = await peer.client.invoke(broker.address, RemotingCommand(310, ext, request.body))
                assert reply.code == 0
                ours = reply.ext or {}
                assert ours.keys() == theirs.keys()
                assert {k: v for k, v in ours.items() if k != "msgId"} == {
                    k: v for k, v in theirs.items() if k not in ("msgId", "queueOffset")
                } | {"queueOffset": str(len(positions))}
                positions[ours["transactionId"]] = {
                    "tranStateTableOffset": ours["queueOffset"],
                    "commitLogOffset": str(int(ours["msgId"][-16:], 16)),
                }
            elif ext["fromTransactionCheck"] == "false":
                ext.update(positions[ext["transactionId"]])
                await peer.client.invoke_oneway(broker.address, RemotingCommand(37, ext, flag=FLAG_ONEWAY))
            else:
                ends.setdefault(ext["transactionId"], []).append(int(ext["commitOrRollback"]))
        # RocketMQ asked about a committed one, too, whose op record it had not written yet, and delivered it twice.
        await wait_until(lambda: len(_open(broker)) == 1, "one is open")
        (open_id,) = _open(broker)
        asked = [decode_frame(frame.data) for frame in frames if frame.request_code == 39]
        checks = [check for check in asked if (check.ext or {})["transactionId"] == open_id]
        for number, (theirs_check, decision) in enumerate(zip(checks, ends[open_id], strict=True)):
            await advance(broker, 5)
            await wait_until(lambda number=number: len(peer.checks) > number, f"check {number}")
            _, check = peer.checks[number]
            assert (check.ext or {}).keys() == (theirs_check.ext or {}).keys()
            assert check.is_oneway
            for name in ("bname", "topic", "msgId", "transactionId"):
                assert (check.ext or {})[name] == (theirs_check.ext or {})[name]
            ours_record, theirs_record = decode_record(check.body), decode_record(theirs_check.body)
            assert ours_record.properties == theirs_record.properties
            assert (ours_record.topic, ours_record.queue_id, ours_record.body, ours_record.sys_flag) == (
                theirs_record.topic, theirs_record.queue_id, theirs_record.body, theirs_record.sys_flag,
            )  # fmt: skip
            peer.answer(number, decision)
        await wait_until(lambda: not _open(broker), "the last answer decided the transaction")
        committed = [
            record.body for queue in range(4) for record in await records(peer, broker, "TopicTrans", queue)
        ]
    assert sorted(committed) == [b"ask me", b"ask me later", b"commit me"]


def _open(broker: Broker) -> list[str]:
    """Ids of the open transactions."""
    (feature,) = [feature for feature in broker.features if feature.name == "transactions"]
    return [key[1] for key in feature.transaction_store.table.by_key]  # type: ignore[attr-defined]


@pytest.mark.parametrize("named_by", ["unique key", "offset id", "nothing"])
async def test_client_in_the_form_of_the_cpp_client_is_served(named_by: str, tmp_path: Path) -> None:
    """Long names, JSON numbers among the texts, 0 and 1 for booleans; one-way ends that name the message as they like."""
    async with broker_at(tmp_path, STORE) as (broker, peer):
        connection = await peer.client.connect(broker.address)
        opaque = connection.next_opaque()
        unique_key = "0100000A0000E7A60000C8B5746C0100"
        fields = {
            "OnsChannel": "ALIYUN", "batch": "0", "bornTimestamp": "1795220788040", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4, "flag": 0, "producerGroup": "CPP_PG",
            "properties": f"PGROUP\x01CPP_PG\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02",
            "queueId": 0, "reconsumeTimes": "0", "sysFlag": 4, "topic": "TopicCpp", "unitMode": "0",
        }  # fmt: skip
        reply = await connection.call(_cpp_frame(10, fields, opaque, b"from cpp"), opaque, 5.0)
        assert reply.code == 0, reply
        ext = reply.ext or {}
        assert ext["transactionId"] == unique_key
        names = {"unique key": unique_key, "offset id": ext["msgId"], "nothing": ""}
        end = {
            "commitLogOffset": int(ext["msgId"][-16:], 16), "commitOrRollback": 8, "fromTransactionCheck": 0,
            "msgId": names[named_by], "producerGroup": "CPP_PG", "tranStateTableOffset": int(ext["queueOffset"]),
            "transactionId": names[named_by] if named_by == "unique key" else "",
        }  # fmt: skip
        connection.write(_cpp_frame(37, end, connection.next_opaque(), flag=FLAG_ONEWAY))
        await wait_until(lambda: broker.store.max_offset("TopicCpp", 0) == 1, "the committed message")
        (record,) = await records(peer, broker, "TopicCpp")
        assert (record.body, record.unique_id) == (b"from cpp", unique_key)


def _cpp_frame(code: int, ext: dict[str, Any], opaque: int, body: bytes = b"", flag: int = 0) -> bytes:
    header = json.dumps(
        {
            "code": code,
            "extFields": ext,
            "flag": flag,
            "language": "CPP",
            "opaque": opaque,
            "remark": "",
            "version": 63,
        },
        separators=(",", ":"),
    ).encode()
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


# --- stores


def sizes(archive: Archive) -> dict[str, Any]:
    """The file sizes with which an archive was written."""
    config = archive.config(mapped_file_size_timer_log=65_520)
    fields = (
        "mapped_file_size_commit_log", "mapped_file_size_consume_queue", "mapper_file_size_batch_consume_queue",
        "max_hash_slot_num", "max_index_num", "mapped_file_size_timer_log",
    )  # fmt: skip
    return {field: getattr(config, field) for field in fields}


@pytest.mark.parametrize("name", ["killed", "clean-shutdown"])
async def test_transaction_that_rocketmq_left_open_is_checked_and_delivered_here(
    name: str, tmp_path: Path
) -> None:
    archive = Archive(name, tmp_path)
    store = sizes(archive)
    async with broker_at(archive.root, store) as (broker, peer):
        (transaction_id,) = _open(broker)
        await peer.join(broker.address, "PG_storetrans")
        await advance(broker, 61)
        await wait_until(lambda: len(peer.checks) == 1, "the check arrived")
        record = decode_record(peer.checks[0][1].body)
        assert (record.topic, record.body) == ("StoreTrans", b"transaction UNKNOW")
        assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert record.unique_id == transaction_id
        before = await records(peer, broker, "StoreTrans")
        assert [record.body for record in before] == [b"transaction COMMIT_MESSAGE"]
        peer.answer(0, 8)
        await wait_until(lambda: not _open(broker), "it is decided")
        after = await records(peer, broker, "StoreTrans")
        assert [record.body for record in after] == [b"transaction COMMIT_MESSAGE", b"transaction UNKNOW"]
    # What RocketMQ would continue from: nothing is open, and the offsets of its group say so.
    async with broker_at(archive.root, store) as (broker, peer):
        assert _open(broker) == []
        assert broker.offsets.query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == 4
        assert len(await records(peer, broker, "StoreTrans")) == 2


async def test_commit_that_rocketmq_left_without_its_op_record_is_not_delivered_twice(tmp_path: Path) -> None:
    """As after a kill within the 3 s for which RocketMQ keeps op records in memory."""
    archive = Archive("killed", tmp_path)
    (archive.root / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
    for queue in (archive.root / "consumequeue" / "RMQ_SYS_TRANS_OP_HALF_TOPIC" / "0").iterdir():
        queue.write_bytes(bytes(queue.stat().st_size))
    log = next((archive.root / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    at = data.index(b"0,1,\x1bRMQ_SYS_TRANS_OP_HALF_TOPIC")
    data[at : at + 4] = b"7,8,"  # the op record tells nothing of what is in the queue
    crc_at = data.rindex(b"\xda\xa3\x20\xa7", 0, at) + 4

    data[crc_at : crc_at + 4] = (zlib.crc32(b"7,8,") & 0x7FFFFFFF).to_bytes(4, "big")
    log.write_bytes(bytes(data))
    store = sizes(archive)
    async with broker_at(archive.root, store) as (broker, peer):
        # The one that was rolled back is open again, for nothing in the log says otherwise; the committed one is not.
        await peer.join(broker.address, "PG_storetrans")
        await advance(broker, 61)
        await wait_until(lambda: len(peer.checks) == 2, "two checks")
        bodies = sorted(decode_record(check.body).body for _, check in peer.checks)
        assert bodies == [b"transaction ROLLBACK_MESSAGE", b"transaction UNKNOW"]
        assert [record.body for record in await records(peer, broker, "StoreTrans")] == [
            b"transaction COMMIT_MESSAGE"
        ]
