"""SendMessage in the native HTTP/2 core, compared with the services, which serve everything else (send_message.py)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from hpack import Encoder

from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.grpc.call import Event
from aerobee.grpc.frame_scanner import HEADERS, RST_STREAM
from aerobee.grpc.proto import messages as pb
from aerobee.message import Record, decode_records
from aerobee.testing import LocalCluster
from tests.fuzz.grpc_sends import END_HEADERS, Requests, frame
from tests.integration.grpc.client import GrpcClient, message
from tests.integration.grpc.test_receive_message import receive_request
from tests.waiting import wait_until

pytest.importorskip("aerobee_native")
ROUNDS = 400
BODY_BYTES_MAX = 4_096


class Bursts:
    """Which of both serves: a connection's bytes go through the fast path, or past it. `served` counts the messages that the former
    has stored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_native, self.served, self.left = True, 0, 0
        burst = FastPath.http2_burst

        def http2_burst(
            fast_path: FastPath, connection: Any, http2: Any, data: bytes, now: float
        ) -> tuple[list[Event], int]:
            if not self.is_native:
                return list(http2.receive(data, now) if data else http2.proceed(now)), 0
            appender = fast_path._store.appender
            before = appender.last_record_offset
            events, sent_count = burst(fast_path, connection, http2, data, now)
            self.served += appender.last_record_offset != before
            self.left += bool(events)
            assert (sent_count > 0) == (appender.last_record_offset != before)
            return events, sent_count

        monkeypatch.setattr(FastPath, "http2_burst", http2_burst)


class RawClient:
    """A client of HTTP/2 that writes what it is given, and reads with the package h2."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._reading = H2Connection(H2Configuration(client_side=True, validate_inbound_headers=False))
        self._reading.initiate_connection()
        self._encoder = Encoder()
        self._encoder.header_table_size = 0
        writer.write(self._reading.data_to_send())

    @classmethod
    async def connect(cls, address: str) -> RawClient:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def headers(self, client_id: str, timeout: str) -> list[tuple[str, str]]:
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
            (":authority", "broker"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-mq-client-id", client_id),
            *([("grpc-timeout", timeout)] if timeout else []),
        ]

    def begin(self, client_id: str = "client-1", timeout: str = "") -> tuple[int, bytes]:
        """(stream id, header block) of the next call; the reading side knows it."""
        stream_id = self._reading.get_next_available_stream_id()
        self._reading.send_headers(stream_id, self.headers(client_id, timeout), end_stream=True)
        self._reading.data_to_send()  # written by hand instead
        return stream_id, bytes(self._encoder.encode(self.headers(client_id, timeout)))

    async def call(self, requests: Requests, client_id: str, request: bytes, seed: int) -> Any:
        """What a call is answered: (trailers, response without its offset)."""
        stream_id, block = self.begin(client_id)
        requests.pick.seed(seed)
        for piece in requests.pieces(stream_id, block, request):
            self._writer.write(piece)
            await asyncio.sleep(0)
        return (await self.answers({stream_id}))[stream_id]

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def answers(self, waiting: set[int]) -> dict[int, Any]:
        """The answers of these streams."""
        found: dict[int, Any] = {stream_id: [b"", {}] for stream_id in waiting}
        while waiting:
            async with asyncio.timeout(120):
                data = await self._reader.read(65_536)
            assert data, "the connection ended"
            for event in self._reading.receive_data(data):
                if isinstance(event, DataReceived):
                    self._reading.increment_flow_control_window(event.flow_controlled_length)
                stream_id = getattr(event, "stream_id", None)
                if stream_id not in found:
                    continue
                if isinstance(event, DataReceived):
                    found[stream_id][0] += event.data
                elif isinstance(event, ResponseReceived | TrailersReceived):
                    found[stream_id][1].update(event.headers)
                elif isinstance(event, StreamEnded | StreamReset):
                    waiting.discard(stream_id)
            self._writer.write(self._reading.data_to_send())
        return {stream_id: (plain(data), headers) for stream_id, (data, headers) in found.items()}

    def close(self) -> None:
        self._writer.close()


def plain(data: bytes) -> str:
    """A response without the offsets, which differ."""
    if not data:
        return ""
    response = pb.SendMessageResponse.FromString(data[5:])
    for entry in response.entries:
        entry.offset = 0
    return str(response)


def stored(cluster: LocalCluster, topic: str, begin: int) -> tuple[int, list[Any]]:
    """(end of the queue, what tells its new messages apart)."""
    store = cluster.broker().store
    end = store.queue(topic, 0).max_offset
    if begin == end:
        return end, []
    found = store.get_messages(topic, 0, begin, count_max=end - begin)
    entries = store.queue(topic, 0).entries(begin, end - begin)
    return end, [
        (told(record), entry[2]) for record, entry in zip(decode_records(found.body), entries, strict=True)
    ]


def told(record: Record) -> tuple[Any, ...]:
    """What both write alike; the born time only if it is the client's, not the moment."""
    is_given = record.properties.get("BORN_TIMESTAMP") == str(record.born_timestamp)
    return (
        record.body, dict(record.properties), record.flag, record.sys_flag, record.born_host[0],
        record.born_timestamp if is_given else 0, record.reconsume_times,
    )  # fmt: skip


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config={"maxMessageSize": BODY_BYTES_MAX}) as started:
        await started.create_topic("plain", queues=1)
        await started.create_topic("fifo", queues=1, attributes="+message.type=FIFO")
        await started.create_topic("read-only", queues=1, perm=4)
        yield started


@pytest.mark.parametrize("seed", range(3))
async def test_the_fast_path_answers_and_stores_as_the_services_do(
    cluster: LocalCluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bursts = Bursts(monkeypatch)
    requests = Requests(random.Random(seed))
    native, python = [await RawClient.connect(cluster.broker().address) for _ in range(2)]
    ends = dict.fromkeys(("plain", "fifo"), 0)
    sent = 0
    for _ in range(ROUNDS):
        client_id, request, framing = requests.client_id(), requests.request(), requests.pick.getrandbits(32)
        seen = []
        for client, bursts.is_native in ((native, True), (python, False)):
            answer = await client.call(requests, client_id, request, framing)
            new = {}
            for topic in ends:
                ends[topic], new[topic] = stored(cluster, topic, ends[topic])
            seen.append((answer, new))
            sent += bool(new["plain"])
        assert seen[0] == seen[1], request
    assert ROUNDS / 4 < bursts.served < ROUNDS, "ordinary requests and others"
    assert bursts.left > 0
    assert sent > bursts.served
    native.close()
    python.close()


async def test_messages_of_one_read_are_stored_in_its_order(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for the services among ordinary ones."""
    bursts = Bursts(monkeypatch)
    requests = Requests(random.Random(1))
    client = await RawClient.connect(cluster.broker().address)
    written, waiting = b"", set()
    for number in range(6):
        made = requests.message()
        made.CopyFrom(eligible_message(f"M{number}", b"%d" % number))
        if number == 3:
            made.system_properties.ClearField("born_timestamp")  # the services write the time
        request = pb.SendMessageRequest(messages=[made]).SerializeToString()
        stream_id, block = client.begin()
        waiting.add(stream_id)
        requests.pick.seed(0)
        written += b"".join(Requests(random.Random(0)).pieces(stream_id, block, request))
    client.write(written)
    answers = await client.answers(waiting)
    assert all("code: OK" in answer for answer, _ in answers.values())
    _, messages = stored(cluster, "plain", 0)
    assert [told_body for ((told_body, *_), _) in messages] == [b"%d" % number for number in range(6)]
    assert bursts.served == 1, "the first three in one burst"
    client.close()


async def test_calls_that_do_not_become_whole_end_alone(cluster: LocalCluster) -> None:
    """One whose request does not come before its deadline, and one that is cancelled in the read of its request."""
    client = await RawClient.connect(cluster.broker().address)
    late, block = client.begin(timeout="50m")
    client.write(frame(HEADERS, END_HEADERS, late, block))
    ((_, trailers),) = (await client.answers({late})).values()
    assert trailers[b"grpc-status"] == b"4"
    requests = Requests(random.Random(0))
    written = b""
    for number in range(2):
        made = pb.SendMessageRequest(messages=[eligible_message(f"C{number}", b"%d" % number)])
        stream_id, block = client.begin()
        written += b"".join(requests.pieces(stream_id, block, made.SerializeToString()))
        if number == 0:
            written += frame(RST_STREAM, 0, stream_id, bytes((0, 0, 0, 8)))
    client.write(written)
    ((answer, _),) = (await client.answers({stream_id})).values()
    assert "code: OK" in answer
    _, messages = stored(cluster, "plain", 0)
    assert [body for ((body, *_), _) in messages] == [b"1"]
    client.close()


def eligible_message(message_id: str, body: bytes = b"body") -> pb.Message:
    """A message that the fast path serves."""
    made = message("plain", body, message_id)
    made.system_properties.born_timestamp.seconds = 1_700_000_000
    return made


async def send(cluster: LocalCluster, number: int = 0) -> int:
    """Send an ordinary message; returns the code of the answer."""
    async with GrpcClient(cluster.broker().address) as client:
        made = eligible_message(f"A{number}")
        answer = await client("SendMessage", pb.SendMessageRequest(messages=[made]))
        return int(answer.status.code)


async def test_a_topic_that_changes_is_looked_at_again(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bursts = Bursts(monkeypatch)
    assert await send(cluster) == pb.OK
    assert bursts.served == 1
    await cluster.create_topic("plain", queues=1, attributes="+message.type=FIFO")
    assert await send(cluster) == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert bursts.served == 1


async def test_messages_are_counted_and_wake_consumers(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bursts = Bursts(monkeypatch)
    broker = cluster.broker()
    async with GrpcClient(broker.address, client_id="consumer") as consumer:
        request = receive_request(poll_s=20)
        request.message_queue.topic.name = "plain"
        waiting = asyncio.create_task(consumer.stream("ReceiveMessage", request, 30))
        await wait_until(lambda: broker.services.pops._waiting.count == 1)
        assert await send(cluster) == pb.OK
        received = [each.message for each in await waiting if each.HasField("message")]
    assert [each.system_properties.message_id for each in received] == ["A0"]
    assert bursts.served == 1
    broker.stats.count_noted()
    assert broker.stats.put_total == 1
    assert broker.ports.grpc_traffic.calls["SendMessage", "OK"] == 1


async def test_a_broker_that_waits_for_the_disk_leaves_sends_to_the_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bursts = Bursts(monkeypatch)
    async with LocalCluster(broker_config={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        await cluster.create_topic("plain", queues=1)
        assert await send(cluster) == pb.OK
        assert bursts.served == 0
        assert bursts.left > 0


async def test_a_burst_that_cannot_be_recorded_answers_no_client(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sees its connection end, and the store takes no more messages."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    store = cluster.broker().store
    with monkeypatch.context() as patch:
        patch.setattr(type(store.appender), "last_record_offset", property(lambda _: -1, fail), raising=False)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await send(cluster)
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    assert not store.writability.is_writable
    assert await send(cluster) == pb.INTERNAL_SERVER_ERROR


async def test_a_length_of_more_than_five_bytes_is_left_to_the_services(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast path took it and stored the message; protobuf refuses it."""
    bursts = Bursts(monkeypatch)
    client = await RawClient.connect(cluster.broker().address)
    made = eligible_message("L1").SerializeToString()
    assert len(made) < 0x80
    request = b"\x0a" + bytes((len(made) | 0x80,)) + b"\x80" * 8 + b"\0" + made
    answer, trailers = await client.call(Requests(random.Random(0)), "client-1", request, seed=1)
    assert (answer, trailers[b"grpc-status"]) == ("", b"13")
    assert bursts.served == 0
    client.close()
