"""The broker's administration over sockets: every request that RocketMQ's mqadmin sent in the captures is sent again,
and the answers are compared with the captured ones in code, fields and shape of the body.

The state of the captured broker (its topics, groups, a live consumer and producer, offsets, messages) is made first,
by the captured requests themselves where there are some.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from aerobee.clock import SystemClock
from aerobee.message import Record, decode_record, parse_offset_message_id
from aerobee.network import AsyncioNetwork
from aerobee.remoting import fastjson
from aerobee.remoting.body.subscription_group import SubscriptionGroupWrapper
from aerobee.remoting.body.topic_config import TopicConfigSerializeWrapper
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.frame import decode_frame
from aerobee.testing.local_cluster import LocalCluster
from tests.captures import CapturedFrame, captured

BACKGROUND = "background"
# 2003: flow control of cold data, which this broker has not. The others: what the tool does as a separate client.
NOT_REPLAYED = {2003, 310, 34, 35, 38, 15, 11}
# Their keys are names of topics, groups, clients, brokers: one of each stands for all.
NAME_MAPS = {"topicConfigTable", "subscriptionGroupTable", "subscriptionTable", "data", "forbiddenTable"}


@dataclass
class Exchange:
    label: str
    request: RemotingCommand
    reply: RemotingCommand


@dataclass
class Tool:
    """A connection as mqadmin has one, and the live clients next to it."""

    cluster: LocalCluster
    client: RemotingClient
    consumer: RemotingClient
    relayed: list[RemotingCommand] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.cluster.broker_addresses[0]

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        return await self.client.invoke(self.address, RemotingCommand(code, ext, body), timeout_s=60)


def exchanges(name: str) -> list[Exchange]:
    """Requests of the tool to the broker with their replies."""
    asked: dict[tuple[int, int], CapturedFrame] = {}
    found = []
    for frame in captured(name):
        if frame.tap != "broker" or (frame.label or BACKGROUND).startswith(BACKGROUND):
            continue
        opaque = frame.header["opaque"]
        if not frame.is_reply and frame.direction == "request":
            asked[(frame.connection, opaque)] = frame
        elif frame.is_reply and frame.direction == "response":
            question = asked.pop((frame.connection, opaque), None)
            if question is not None and question.request_code not in NOT_REPLAYED:
                found.append(Exchange(frame.label, decode_frame(question.data), decode_frame(frame.data)))
    return found


def captured_body(name: str, code: int) -> bytes:
    return next(exchange.reply.body for exchange in exchanges(name) if exchange.request.code == code)


@pytest.fixture
async def tool() -> AsyncIterator[Tool]:
    async with LocalCluster() as cluster:
        clock, network = SystemClock(), AsyncioNetwork()
        relayed: list[RemotingCommand] = []
        running_info = captured_body("mqadmin", 307)
        directly = captured_body("mqadmin-more", 309)

        def notified(connection: Connection, request: RemotingCommand) -> None:
            return None

        def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            relayed.append(request)
            return request.reply(body=running_info if request.code == 307 else directly)

        client = RemotingClient(clock=clock, network=network)
        consumer = RemotingClient(
            clock=clock, network=network, handlers={40: notified, 307: answer, 309: answer}
        )
        tool = Tool(cluster, client, consumer, relayed)
        try:
            await make_captured_state(tool)
            yield tool
        finally:
            await client.close()
            await consumer.close()


async def make_captured_state(tool: Tool) -> None:
    broker = tool.cluster.broker()
    topics = TopicConfigSerializeWrapper.decode(captured_body("mqadmin", 21)).topic_config_table
    wanted = [config for config in topics.values() if not broker.topics.is_system(config.topic_name)]
    broker.topics.put_all(wanted)
    groups = SubscriptionGroupWrapper.decode(captured_body("mqadmin", 201)).subscription_group_table
    body = fastjson.dumps({"groupConfigList": [config.to_dict() for config in groups.values()]})
    assert (await tool.call(225, None, body)).code == 0
    for topic, tag, key in [
        *(("TopicNormal", "TagA", "livekey") for _ in range(12)),
        ("TopicBatch", "TagB", "b"),
        ("TopicPush", "TagA", "p"),
    ]:
        await send(tool, topic, tag, key)
    await make_live_clients(tool)
    for group, topic in (("CG_live", "TopicNormal"), ("CG_cluster", "TopicPush"), ("CG_sql", "TopicFilter")):
        for queue_id in range(broker.topics.topics[topic].read_queue_nums):
            offset = str(broker.store.max_offset(topic, queue_id))
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": offset}
            assert (await tool.call(15, ext)).code == 0


async def send(tool: Tool, topic: str, tag: str, key: str) -> None:
    config = tool.cluster.broker().topics.topics[topic]
    number = len(tool.records)
    unique_id = f"0A0000015AB84E0E2F2A670E8ABC{number:04X}"
    properties = f"KEYS\x01{key}\x02UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02TAGS\x01{tag}\x02"
    ext = {
        "a": "PG_live", "b": topic, "c": "TBW102", "d": "4", "e": str(number % config.write_queue_nums),
        "f": "0", "g": str(int(time.time() * 1000)), "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    reply = await tool.call(310, ext, b"live message")
    assert reply.code == 0
    assert reply.ext is not None
    _, offset = parse_offset_message_id(reply.ext["msgId"])
    view = await tool.call(33, {"offset": str(offset)})
    tool.records.append(decode_record(view.body))


async def make_live_clients(tool: Tool) -> None:
    """Send the captured heartbeats of the live consumer and the live producer."""
    sent = set()
    for frame in captured("mqadmin"):
        if frame.tap == "broker" and frame.request_code == 34 and not frame.is_reply:
            beat = decode_frame(frame.data)
            client_id = fastjson.loads(beat.body)["clientID"]
            if client_id in ("10.0.0.1@CG_live", "10.0.0.1@PG_live") and client_id not in sent:
                sent.add(client_id)
                beat.opaque = 0
                assert (await tool.consumer.invoke(tool.address, beat, timeout_s=60)).code == 0
    assert len(sent) == 2


def shape(value: Any, name: str = "") -> Any:
    """What a body looks like, whatever names and numbers are in it."""
    if isinstance(value, dict):
        if name in NAME_MAPS or any(key.startswith("{") for key in value):
            shapes = [shape(item) for item in value.values()]
            return {"*": shapes[0]} if shapes else {}
        return {key: shape(item, key) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else "text"


def comparable(code: int, body: bytes) -> Any:
    """The body in a form in which ours and RocketMQ's must be equal."""
    if not body:
        return b""
    if code == 307:  # the client's own bytes
        return "relayed"
    if code in (12, 33):
        return "records"
    if code == 26:
        lines = body.decode().splitlines()
        return "properties" if all("=" in line for line in lines) and lines == sorted(lines) else lines
    value = fastjson.loads(body)
    if code == 28:
        keys = (
            re.sub(r"(?<=commitLogDiskRatio_).*|(?<=scheduleMessageOffset_).*", "", key)
            for key in value["table"]
        )
        return {key for key in keys if not key.startswith("scheduleMessageOffset_")}
    if code == 317:  # one list of groups, each with its topics
        return {key: shape(item) for key, item in value.items() if key != "consumeStatsList"}
    return shape(value)


def adapted(tool: Tool, exchange: Exchange) -> RemotingCommand:
    """The captured request, with our own broker's ids and offsets in place of the captured ones."""
    request = exchange.request
    ext = dict(request.ext) if request.ext is not None else None
    live = [record for record in tool.records if record.topic == "TopicNormal"]
    if request.code == 33 and ext is not None:
        ext["offset"] = str(live[0].physical_offset)
    if request.code == 309 and ext is not None:
        ext["msgId"] = live[0].offset_message_id
    if request.code == 12 and ext is not None and ext.get("_UNIQUE_KEY_QUERY") == "true":
        ext["key"] = live[0].unique_id or ""
        ext["beginTimestamp"], ext["endTimestamp"] = "0", str(2**63 - 1)
    return RemotingCommand(
        request.code, ext, request.body, version=request.version, language=request.language
    )


def differs(exchange: Exchange) -> bool:
    """Whether our broker answers otherwise, or may."""
    if exchange.request.code == 401:  # popping is not served, so it cannot be chosen
        return True
    # What the captured broker had counted, or not, depends on what ran before on it.
    return exchange.request.code == 315


@pytest.mark.parametrize("name", ["mqadmin", "mqadmin-more"])
async def test_every_captured_request_of_mqadmin_is_answered_as_captured(tool: Tool, name: str) -> None:
    wrong = []
    compared = set()
    for exchange in exchanges(name):
        code = exchange.request.code
        reply = await tool.client.invoke(tool.address, adapted(tool, exchange), timeout_s=60)
        if differs(exchange):
            continue
        compared.add(code)
        expected = exchange.reply
        ours, theirs = comparable(code, reply.body), comparable(code, expected.body)
        if code in (208, 300, 203, 315) and expected.code == reply.code == 0:
            # Which groups and queues have offsets depends on what ran before, and an empty table has no shape.
            ours, theirs = (sorted(part) if isinstance(part, dict) else part for part in (ours, theirs))
        pair = (reply.code, set(reply.ext or ()), ours), (expected.code, set(expected.ext or ()), theirs)
        if pair[0] != pair[1]:
            wrong.append((exchange.label, code, adapted(tool, exchange).ext, *pair, reply.remark))
    assert wrong == []
    assert len(compared) >= (20 if name == "mqadmin" else 10)
