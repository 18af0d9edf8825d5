"""POP calls to a broker, as a client makes them, for the integration tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aerobee.broker.assembly.broker import Broker
from aerobee.message import Record, decode_records
from aerobee.remoting.body.pop_handle import (
    NORMAL,
    Handle,
    parse_message_offsets,
    parse_start_offsets,
    real_topic,
)
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand


@dataclass(frozen=True)
class Popped:
    """One message and its handle; `topic` is where its acknowledgement goes."""

    record: Record
    handle: Handle
    topic: str
    group: str

    @property
    def body(self) -> bytes:
        return self.record.body


def pop_request(
    broker: Broker,
    topic: str,
    group: str = "group",
    *,
    queue: int = -1,
    count: int = 32,
    invisible_ms: int = 10_000,
    poll_ms: int = 0,
    order: bool = False,
    attempt: str = "",
    exp: str = "*",
    init_mode: int = 0,
) -> RemotingCommand:
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "maxMsgNums": str(count),
        "invisibleTime": str(invisible_ms), "pollTime": str(poll_ms), "bornTime": str(broker.clock.now_ms()),
        "initMode": str(init_mode), "expType": "TAG", "exp": exp, "order": "true" if order else "false",
    }  # fmt: skip
    if attempt:
        ext["attemptId"] = attempt
    return RemotingCommand(200050, ext)


def popped(reply: RemotingCommand, topic: str, group: str = "group") -> list[Popped]:
    """The messages of a reply with their handles, found as RocketMQ's client finds them."""
    assert reply.ext is not None
    if reply.code != 0:
        assert reply.code == 210, reply
        return []
    starts = parse_start_offsets(reply.ext["startOffsetInfo"])
    positions = {
        (queue_id, offset): retry
        for (retry, queue_id), offsets in parse_message_offsets(reply.ext["msgOffsetInfo"]).items()
        for offset in offsets
        if retry == NORMAL
    }
    found = []
    for record in decode_records(reply.body):
        text = record.properties.get("POP_CK")
        if text:
            tokens = text.split(" ")
            handle = Handle(*map(int, tokens[:4]), tokens[4], tokens[5], int(tokens[6]), int(tokens[7]))  # type: ignore[call-arg]
        else:
            retry = positions[(record.queue_id, record.queue_offset)]
            handle = Handle(
                starts[(retry, record.queue_id)],
                int(reply.ext["popTime"]),
                int(reply.ext["invisibleTime"]),
                int(reply.ext["reviveQid"]),
                retry,
                "broker-a",
                record.queue_id,
                record.queue_offset,
            )
        found.append(Popped(record, handle, real_topic(topic, group, handle.retry), group))
    return found


async def pop(
    client: RemotingClient, broker: Broker, topic: str, group: str = "group", **how: object
) -> list[Popped]:
    request = pop_request(broker, topic, group, **how)  # type: ignore[arg-type]
    return popped(await client.invoke(broker.address, request, timeout_s=30), topic, group)


def ack_request(message: Popped) -> RemotingCommand:
    return RemotingCommand(
        200051,
        {
            "consumerGroup": message.group, "topic": message.topic, "queueId": str(message.handle.queue_id),
            "extraInfo": str(message.handle), "offset": str(message.handle.queue_offset),
        },
    )  # fmt: skip


async def ack(client: RemotingClient, broker: Broker, message: Popped) -> int:
    return (await client.invoke(broker.address, ack_request(message))).code


async def change(
    client: RemotingClient, broker: Broker, message: Popped, invisible_ms: int, *, suspend: bool = False
) -> Popped:
    """Change the invisible time; returns the message with its new handle."""
    request = ack_request(message)
    request.code = 200053
    assert request.ext is not None
    request.ext["invisibleTime"] = str(invisible_ms)
    request.ext["suspend"] = "true" if suspend else "false"
    reply = await client.invoke(broker.address, request)
    assert reply.code == 0, reply
    assert reply.ext is not None
    start = message.handle.start_offset if message.handle.is_ordered else message.handle.queue_offset
    handle = replace(
        message.handle,
        start_offset=start,
        pop_time=int(reply.ext["popTime"]),
        invisible_ms=int(reply.ext["invisibleTime"]),
        revive_queue_id=int(reply.ext["reviveQid"]),
    )
    return replace(message, handle=handle)
