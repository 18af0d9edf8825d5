"""A broker over real sockets: messages sent, pulled, held, delayed, given back, and kept over a restart."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.clock import SystemClock
from aerobee.errors import ConnectFailed, StoreLocked, TransportError
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame
from tests.integration.broker_calls import make_broker, pull_request, records_of, send_request
from tests.waiting import wait_until


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    yield client
    await client.close()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = make_broker(tmp_path)
    await broker.start()
    yield broker
    await broker.stop()


async def test_what_is_sent_is_pulled(broker: Broker, client: RemotingClient) -> None:
    for number in range(5):
        reply = await client.invoke(broker.address, send_request("TopicNew", b"body %d" % number))
        assert reply.code == 0
        assert reply.ext
        assert reply.ext["queueOffset"] == str(number)
    pulled = await client.invoke(broker.address, pull_request("TopicNew"))
    assert [record.body for record in records_of(pulled)] == [b"body %d" % number for number in range(5)]


async def test_a_held_pull_is_answered_when_a_message_comes(broker: Broker, client: RemotingClient) -> None:
    await client.invoke(broker.address, send_request("TopicNew"))
    held = asyncio.create_task(
        client.invoke(broker.address, pull_request("TopicNew", 1, hold_ms=20_000), timeout_s=30)
    )
    await wait_until(lambda: broker.pending_pulls.count == 1, "the pull is held")
    await client.invoke(broker.address, send_request("TopicNew", b"late"))
    assert [record.body for record in records_of(await held)] == [b"late"]


async def test_a_hold_ends_with_nothing_found(broker: Broker, client: RemotingClient) -> None:
    await client.invoke(broker.address, send_request("TopicNew"))
    reply = await client.invoke(broker.address, pull_request("TopicNew", 1, hold_ms=50), timeout_s=60)
    assert reply.code == 19


async def test_many_requests_in_one_write_are_answered_in_one_go(
    broker: Broker, client: RemotingClient
) -> None:
    await client.invoke(broker.address, send_request("TopicNew"))
    connection = await client.connect(broker.address)
    calls = []
    for number in range(200):
        request = send_request(
            "TopicNew", b"x" * 50, queue=number % 4, properties=f"UNIQ_KEY\x01U{number}\x02"
        )
        request.opaque = connection.next_opaque()
        calls.append(connection.call(encode_frame(request), request.opaque, 5.0))
    replies = await asyncio.gather(*calls)
    assert {reply.code for reply in replies} == {0}
    assert sum(broker.store.max_offset("TopicNew", queue) for queue in range(4)) == 201


async def test_requests_in_binary_get_binary_answers(broker: Broker, client: RemotingClient) -> None:
    for request in (send_request("TopicNew"), send_request("TopicNew"), pull_request("TopicNew")):
        request.serialize_type = 1
        reply = await client.invoke(broker.address, request)
        assert reply.code == 0
        assert reply.serialize_type == 1


async def test_a_message_is_delivered_after_its_delay_level(tmp_path: Path, client: RemotingClient) -> None:
    broker = make_broker(tmp_path, store={"message_delay_level": "1s 1h"})
    await broker.start()
    try:
        await client.invoke(broker.address, send_request("TopicDelay"))
        request = send_request(
            "TopicDelay", b"later", properties="UNIQ_KEY\x01U\x02DELAY\x011\x02TAGS\x01t\x02"
        )
        assert (await client.invoke(broker.address, request)).code == 0
        held = await client.invoke(broker.address, pull_request("TopicDelay", 1, hold_ms=5_000), timeout_s=60)
        (record,) = records_of(held)
        assert record.body == b"later"
        assert record.properties["REAL_TOPIC"] == "TopicDelay"
        assert record.store_timestamp - record.born_timestamp > 1_000
        assert broker.schedule.offsets == {1: 1}
    finally:
        await broker.stop()
    assert '"offsetTable":{\n\t\t1:1\n\t}' in (tmp_path / "config" / "delayOffset.json").read_text()


async def test_a_message_given_back_comes_again_and_ends_as_dead_letter(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path, store={"message_delay_level": "1s 1s"})
    await broker.start()
    try:
        sent = await client.invoke(
            broker.address, send_request("TopicNew", b"again", properties="UNIQ_KEY\x01U\x02")
        )
        assert sent.ext

        def give_back(offset: int, level: int) -> RemotingCommand:
            ext = {
                "offset": str(offset),
                "group": "group",
                "delayLevel": str(level),
                "maxReconsumeTimes": "16",
            }
            return RemotingCommand(36, ext)

        reply = await client.invoke(broker.address, give_back(int(sent.ext["msgId"][16:], 16), 1))
        assert reply.code == 0
        retry = await client.invoke(
            broker.address, pull_request("%RETRY%group", 0, hold_ms=5_000), timeout_s=60
        )
        (record,) = records_of(retry)
        assert record.reconsume_times == 1
        assert record.properties["RETRY_TOPIC"] == "TopicNew"
        assert record.properties["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
        assert (await client.invoke(broker.address, give_back(record.physical_offset, -1))).code == 0
        dead = await client.invoke(broker.address, pull_request("%DLQ%group"))
        (dead_letter,) = records_of(dead)
        assert dead_letter.body == b"again"
        assert dead_letter.reconsume_times == 2
        assert (await client.invoke(broker.address, give_back(10**9, 0))).code == 1
    finally:
        await broker.stop()


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_everything_is_there_after_the_end(tmp_path: Path, client: RemotingClient, ending: str) -> None:
    broker = make_broker(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"})
    await broker.start()
    for number in range(20):
        request = send_request(
            "TopicNew", b"%d" % number, properties=f"UNIQ_KEY\x01U{number}\x02KEYS\x01k{number}\x02"
        )
        assert (await client.invoke(broker.address, request)).code == 0
    await client.invoke(broker.address, pull_request("TopicNew", group="reader"))
    broker.offsets.commit("reader", "TopicNew", 0, 7)
    await (broker.stop() if ending == "stop" else broker.kill())
    assert (tmp_path / "abort").exists() == (ending == "kill")
    again = make_broker(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"})
    await again.start()
    try:
        pulled = await client.invoke(again.address, pull_request("TopicNew"))
        assert [record.body for record in records_of(pulled)] == [b"%d" % number for number in range(20)]
        assert again.store.query("TopicNew", "k13", count_max=8).count == 1
        if ending == "stop":
            assert again.offsets.query("reader", "TopicNew", 0) == 7
        reply = await client.invoke(again.address, send_request("TopicNew"))
        assert reply.ext
        assert reply.ext["queueOffset"] == "20"
    finally:
        await again.stop()


async def test_sync_flush_replies_come_when_the_disk_has_the_message(
    tmp_path: Path, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"})
    await broker.start()
    try:
        replies = await asyncio.gather(
            *(client.invoke(broker.address, send_request("TopicNew", b"%d" % n)) for n in range(50))
        )
        assert {reply.code for reply in replies} == {0}
        assert broker.store.flushed.value == broker.store.log.end
    finally:
        await broker.stop()


async def test_a_stopping_broker_answers_what_it_holds(tmp_path: Path, client: RemotingClient) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    await client.invoke(broker.address, send_request("TopicNew"))
    held = asyncio.create_task(
        client.invoke(broker.address, pull_request("TopicNew", 1, hold_ms=20_000), timeout_s=30)
    )
    await wait_until(lambda: broker.pending_pulls.count == 1, "the pull is held")
    await broker.stop()
    assert (await held).code == 19
    assert not (tmp_path / "abort").exists()
    with pytest.raises(ConnectFailed):
        await client.invoke(broker.address, send_request("TopicNew"))


async def test_two_brokers_cannot_share_a_directory(tmp_path: Path, broker: Broker) -> None:
    with pytest.raises(StoreLocked, match="is open in another broker"):
        await make_broker(tmp_path).start()


async def test_a_taken_port_is_named_and_leaves_the_directory_free(tmp_path: Path, broker: Broker) -> None:
    port = int(broker.address.rpartition(":")[2])
    with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}"):
        await make_broker(tmp_path / "other", listen_port=port).start()
    other = make_broker(tmp_path / "other")
    await other.start()
    await other.stop()


async def test_bytes_that_break_the_protocol_close_one_connection_only(
    broker: Broker, client: RemotingClient
) -> None:
    await client.invoke(broker.address, send_request("TopicNew"))
    host, _, port = broker.address.rpartition(":")
    for garbage in (b"\x7f\xff\xff\xff" * 4, b"\0\0\0\x08\0\xff\xff\xff{}{}", b"\0\0\0\x06\0\0\0\x02{]"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
    assert (await client.invoke(broker.address, send_request("TopicNew"))).code == 0


async def test_an_unknown_request_is_not_supported(broker: Broker, client: RemotingClient) -> None:
    reply = await client.invoke(broker.address, RemotingCommand(9_999))
    assert reply.code == 3


async def test_a_killed_broker_fails_its_callers(tmp_path: Path, client: RemotingClient) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    await client.invoke(broker.address, send_request("TopicNew"))
    held = asyncio.create_task(
        client.invoke(broker.address, pull_request("TopicNew", 1, hold_ms=20_000), timeout_s=30)
    )
    await wait_until(lambda: broker.pending_pulls.count == 1, "the pull is held")
    await broker.kill()
    with pytest.raises(TransportError):
        await held


async def test_settings_changed_at_run_time_are_in_the_configuration_file(
    tmp_path: Path, client: RemotingClient
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# ours\nbrokerName=broker-a\nmaxMessageSize=1000\n")
    broker = make_broker(tmp_path / "store", settings_path=str(path))
    await broker.start()
    try:
        change = RemotingCommand(25, None, b"maxMessageSize=2000\nflushIntervalCommitLog=300\nnoSuchKey=1\n")
        assert (await client.invoke(broker.address, change)).code == 0
    finally:
        await broker.stop()
    text = path.read_text()
    assert text == "# ours\nbrokerName=broker-a\nmaxMessageSize=2000\nflushIntervalCommitLog=300\n"


async def test_latencies_of_puts_and_gets_are_measured(broker: Broker, client: RemotingClient) -> None:
    for number in range(20):  # the first makes the topic, in the handler; the others pass the fast path
        await client.invoke(broker.address, send_request("TopicNew", b"body %d" % number))
    for offset in (0, 5, 20):  # the last one finds nothing
        await client.invoke(broker.address, pull_request("TopicNew", offset))
    assert (broker.stats.put_latency.count, broker.stats.get_latency.count) == (20, 2)
    told = await client.invoke(broker.address, RemotingCommand(28))
    table = json.loads(told.body)["table"]
    assert 0 < float(table["putLatency99"]) <= float(table["putLatency999"]) < 10_000
    assert float(table["getLatency99"]) > 0
    assert sum(int(each) for each in re.findall(r":(\d+) ", table["putMessageDistributeTime"])) == 20
