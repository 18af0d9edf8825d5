"""A broker and a nameserver in one, small enough to misbehave on demand."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import AsyncIterator

import orjson
import pytest

from aerobee.clock import SystemClock
from aerobee.message import decode_properties, encode_properties, encode_record, offset_message_id, pack_host
from aerobee.network import AsyncioNetwork
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.server import Listener, RemotingServer
from aerobee.remoting.tls import ServerTls, server_tls

Key = tuple[str, int]


class FakeBroker:
    """Stores messages in lists. `topics` maps a topic to its queue count; `fail_next` holds codes to answer sends with."""

    def __init__(self, tls: ServerTls | None = None) -> None:
        self.topics: dict[str, int] = {"orders": 4, "TBW102": 4}
        self.records: dict[Key, list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, object]] = defaultdict(dict)
        self.requests: list[RemotingCommand] = []
        self.fail_next: list[int] = []
        self.elsewhere: dict[
            str, str
        ] = {}  # further brokers in each route, and where they are said to listen
        self.sent_back: list[dict[str, str]] = []
        self.refuse_send_back = False
        self.silent = False
        self.offset_by_time = lambda timestamp: 0
        self.parked: list[tuple[object, RemotingCommand, Key, int]] = []
        self.server = RemotingServer(
            clock=SystemClock(), network=AsyncioNetwork(), handlers={}, default=self.handle, tls=tls
        )

    async def start(self) -> None:
        await self.server.start([Listener("default", "127.0.0.1", 0)])
        self.address = f"127.0.0.1:{self.server.address_of('default')[1]}"

    async def stop(self) -> None:
        await self.server.stop(go_away=False, drain_s=0.0)

    def seen(self, code: int) -> list[RemotingCommand]:
        return [request for request in self.requests if request.code == code]

    def handle(self, connection, request):
        self.requests.append(request)
        if self.silent:
            return None
        method = getattr(self, f"code_{request.code}", None)
        if method is None:
            return request.reply(3, remark=f"request type {request.code} not supported")
        return method(connection, request)

    def code_105(self, connection, request):
        topic = request.text("topic")
        if topic not in self.topics:
            return request.reply(17, remark=f"No topic route info in name server for the topic: {topic}")
        count = self.topics[topic]
        brokers = {"broker-a": self.address, **self.elsewhere}
        route = {
            "brokerDatas": [
                {"brokerAddrs": {"0": address}, "brokerName": name, "cluster": "C"}
                for name, address in brokers.items()
            ],
            "queueDatas": [
                {"brokerName": name, "perm": 6, "readQueueNums": count, "writeQueueNums": count}
                for name in brokers
            ],
        }
        return request.reply(body=orjson.dumps(route))

    def code_34(self, connection, request):
        body = orjson.loads(request.body)
        for consumer in body["consumerDataSet"]:
            group = consumer["groupName"]
            if body["clientID"] not in self.members[group]:
                self.members[group][body["clientID"]] = connection
                self.notify(group)
            self.topics.setdefault(f"%RETRY%{group}", 1)
        return request.reply(ext={})

    def notify(self, group: str) -> None:
        for member in self.members[group].values():
            member.invoke_oneway(RemotingCommand(40, {"consumerGroup": group}))  # type: ignore[attr-defined]

    def code_35(self, connection, request):
        group = request.field("consumerGroup")
        if group:
            self.members[group].pop(request.text("clientID"), None)
            self.notify(group)
        return request.reply(ext={})

    def code_38(self, connection, request):
        ids = list(self.members[request.text("consumerGroup")])
        return request.reply(body=orjson.dumps({"consumerIdList": ids}))

    def code_14(self, connection, request):
        key = (request.text("consumerGroup"), request.text("topic"), request.integer("queueId"))
        if key in self.offsets:
            return request.reply(ext={"offset": str(self.offsets[key])})
        # RocketMQ's rule for new queues, which its clients rely on.
        if request.boolean("setZeroIfNotFound", True) and self.records[key[1:]]:
            return request.reply(ext={"offset": "0"})
        return request.reply(22, remark="Not found")

    def code_15(self, connection, request):
        key = (request.text("consumerGroup"), request.text("topic"), request.integer("queueId"))
        self.offsets[key] = request.integer("commitOffset")
        return request.reply()

    def code_30(self, connection, request):
        return request.reply(ext={"offset": str(len(self.queue(request)))})

    def code_29(self, connection, request):
        return request.reply(ext={"offset": str(self.offset_by_time(request.integer("timestamp")))})

    def code_31(self, connection, request):
        return request.reply(ext={"offset": "0"})

    def code_36(self, connection, request):
        if self.refuse_send_back:
            return request.reply(1, remark="no record there")
        self.sent_back.append(dict(request.ext))
        return request.reply()

    def queue(self, request) -> list[bytes]:
        return self.records[request.text("topic"), request.integer("queueId")]

    def store(
        self, topic, queue_id, body, properties, sys_flag=0, flag=0, reconsume_times=0
    ) -> tuple[int, str]:
        queue = self.records[topic, queue_id]
        physical = sum(len(records) for records in self.records.values()) * 1000
        queue.append(
            encode_record(
                topic=topic.encode(),
                queue_id=queue_id,
                queue_offset=len(queue),
                physical_offset=physical,
                body=body,
                properties=properties.encode(),
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp=1,
                born_host=pack_host("127.0.0.1", 1),
                store_timestamp=2,
                store_host=pack_host("127.0.0.1", 10911),
                reconsume_times=reconsume_times,
            )
        )
        self.wake(topic, queue_id)
        return len(queue) - 1, offset_message_id(("127.0.0.1", 10911), physical)

    def code_310(self, connection, request):
        if self.fail_next:
            code = self.fail_next.pop(0)
            if code not in (0, 10, 11, 12):
                return request.reply(code, remark="told to fail")
        else:
            code = 0
        topic, queue_id = request.text("b"), request.integer("e")
        self.topics.setdefault(topic, request.integer("d"))
        offset, message_id = self.store(
            topic,
            queue_id,
            request.body,
            request.text("i"),
            request.integer("f"),
            request.integer("h"),
            request.integer("j", 0),
        )
        return request.reply(
            code, ext={"msgId": message_id, "queueId": str(queue_id), "queueOffset": str(offset)}
        )

    def code_320(self, connection, request):
        code = self.fail_next.pop(0) if self.fail_next else 0
        if code:
            return request.reply(code, remark="told to fail")
        topic, queue_id, at, ids, first = request.text("b"), request.integer("e"), 0, [], None
        while at < len(request.body):
            size, _, _, flag, body_size = struct.unpack_from(">iiiii", request.body, at)
            body = request.body[at + 20 : at + 20 + body_size]
            properties = request.body[at + 22 + body_size : at + size].decode()
            offset, message_id = self.store(topic, queue_id, body, properties, 0, flag)
            first = offset if first is None else first
            ids.append(message_id)
            at += size
        ext = {"msgId": ",".join(ids), "queueId": str(queue_id), "queueOffset": str(first)}
        return request.reply(ext=ext)

    def code_11(self, connection, request):
        key = (request.text("topic"), request.integer("queueId"))
        offset = request.integer("queueOffset")
        if request.integer("sysFlag") & 1:
            self.offsets[(request.text("consumerGroup"), *key)] = request.integer("commitOffset")
        reply = self.pulled(request, key, offset)
        if reply is None:
            self.parked.append((connection, request, key, offset))
        return reply

    code_361 = code_11

    def pulled(self, request, key, offset):
        queue = self.records[key]
        ext = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": str(len(queue))}
        if offset > len(queue):
            return request.reply(21, ext={**ext, "nextBeginOffset": str(len(queue))})
        found = queue[offset : offset + request.integer("maxMsgNums")]
        if not found:
            return None
        return request.reply(ext={**ext, "nextBeginOffset": str(offset + len(found))}, body=b"".join(found))

    def wake(self, topic, queue_id) -> None:
        for entry in [entry for entry in self.parked if entry[2] == (topic, queue_id)]:
            self.parked.remove(entry)
            connection, request, key, offset = entry
            if connection.is_open:  # type: ignore[attr-defined]
                connection.send(self.pulled(request, key, offset))  # type: ignore[attr-defined]

    def bodies(self, topic: str) -> list[bytes]:
        return [
            body
            for key, records in self.records.items()
            if key[0] == topic
            for body in map(record_body, records)
        ]


def record_body(record: bytes) -> bytes:
    (size,) = struct.unpack_from(">i", record, 84)
    return record[88 : 88 + size]


def record_properties(record: bytes) -> dict[str, str]:
    (size,) = struct.unpack_from(">i", record, 84)
    topic_size = record[88 + size]
    return decode_properties(record[88 + size + 3 + topic_size :].decode())


__all__ = ["FakeBroker", "encode_properties", "record_body", "record_properties"]


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    fake = FakeBroker()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def tls_broker() -> AsyncIterator[FakeBroker]:
    fake = FakeBroker(tls=server_tls({}))
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def properties_of():
    return record_properties
