"""A receipt handle is written by its client: what a proxy's own user may read must be the message that the handle is of."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee.broker.grpc.receipt_handle import Receipt
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.client.base.tasks import Tasks
from aerobee.errors import MalformedRecord, RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.message import encode_record, pack_host
from aerobee.proxy.handles import Handles
from aerobee.remoting.body.pop_handle import Handle
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand

HOST = pack_host("127.0.0.1", 10911)


def record(physical_offset: int, body: bytes) -> bytes:
    return encode_record(
        topic=b"orders", body=body, properties=b"", queue_id=2, queue_offset=7, physical_offset=physical_offset,
        born_timestamp=1, born_host=HOST, store_timestamp=2, store_host=HOST,
    )  # fmt: skip


class OneMessage:
    """A cluster whose broker has one message, at queue offset 7 and physical offset 4,096. Its body has the head of another record."""

    def __init__(self) -> None:
        self.forged = record(5_000, b"forged")
        self.stored = record(4_096, self.forged)
        self.session = type("Session", (), {"tasks": Tasks()})()
        self.asked: list[RemotingCommand] = []

    async def route(self, topic: str) -> None:
        return None

    async def call(self, name: str, topic: str, request: RemotingCommand) -> RemotingCommand:
        self.asked.append(request)
        if request.code == RequestCode.VIEW_MESSAGE_BY_ID:  # as RocketMQ's: whatever lies there
            return request.reply(body=self.forged)
        if request.field("queueOffset") != "7":
            raise RemoteError(ResponseCode.PULL_NOT_FOUND, "no message")
        return request.reply(body=self.stored)


def receipt(physical_offset: int, queue_offset: int = 7) -> Receipt:
    return Receipt(Handle(queue_offset, 1, 60_000, 0, "0", "broker-a", 2, queue_offset), physical_offset)


async def test_a_record_inside_a_body_is_no_message_of_the_receipt() -> None:
    """It was read at the physical offset alone, where RocketMQ's brokers answer whatever looks like a record."""
    cluster: Any = OneMessage()
    handles = Handles(cluster)
    await handles.check_record("g", "orders", receipt(4_096))
    for forged in (receipt(5_000), receipt(4_096, queue_offset=8)):
        with pytest.raises(RpcRefused) as refused:
            await handles.check_record("g", "orders", forged)
        assert refused.value.code == pb.INVALID_RECEIPT_HANDLE
    assert {each.code for each in cluster.asked} == {RequestCode.PULL_MESSAGE}


async def test_a_retry_is_looked_up_in_its_retry_topic() -> None:
    cluster: Any = OneMessage()
    handle = Handle(7, 1, 60_000, 0, "1", "broker-a", 2, 7)
    await Handles(cluster).check_record("g", "orders", Receipt(handle, 4_096))
    assert cluster.asked[0].field("topic") == "%RETRY%g_orders"


async def test_an_answer_that_is_no_record_is_refused() -> None:
    cluster: Any = OneMessage()
    cluster.stored = b"\0" * 20
    with pytest.raises(RpcRefused) as refused:
        await Handles(cluster).check_record("g", "orders", receipt(4_096))
    assert isinstance(refused.value.__cause__, MalformedRecord)
