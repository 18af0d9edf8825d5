"""Messages that wait for their time, end to end: a cluster, its client, restarts, RocketMQ's store directories."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import tarfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.client import Admin, Producer
from aerobee.clock import AdvancingClock
from aerobee.errors import MessageIllegal, NoPermission, QueryNotFound, RemoteError, SendFailed, UsageError
from aerobee.message import Message, Record, decode_record
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.recall_handle import decode_recall_handle
from aerobee.store.files.config import StoreConfig
from aerobee.store.timer.timer_checkpoint import decode_timer_checkpoint
from aerobee.system_names import WHEEL_TIMER_TOPIC
from aerobee.testing import LocalCluster
from tests.captures import captured
from tests.waiting import wait_until

DATA = Path(__file__).parents[1] / "data" / "store"
TOPIC = "Orders"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config={"recall_message_enable": True}) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: LocalCluster) -> AsyncIterator[Producer]:
    async with Producer(cluster.nameserver_address, "senders", clock=cluster.clock) as producer:
        yield producer


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.nameserver_address, clock=cluster.clock) as admin:
        yield admin


def clock_of(cluster: LocalCluster) -> AdvancingClock:
    assert isinstance(cluster.clock, AdvancingClock)
    return cluster.clock


def stored(broker: Broker, topic: str) -> list[Record]:
    """Every record of a topic, in the order of the log."""
    found = []
    for (name, _), queue in broker.store.queues.items():
        if name == topic:
            for at in range(queue.max_offset):
                entry = queue.entry(at)
                assert isinstance(entry, tuple)
                data = broker.store.read_record(entry[0])
                assert data is not None
                found.append(decode_record(data))
    return sorted(found, key=lambda record: record.physical_offset)


async def until_stored(broker: Broker, topic: str, count: int) -> list[Record]:
    await wait_until(lambda: len(stored(broker, topic)) >= count, f"{count} messages in {topic}")
    found = stored(broker, topic)
    assert len(found) == count
    return found


async def test_messages_are_delivered_at_their_millisecond(cluster: LocalCluster, producer: Producer) -> None:
    now = cluster.clock.now_ms()
    await producer.send(Message(TOPIC, b"at", deliver_at=(now + 1700) / 1000))
    await producer.send(Message(TOPIC, b"after", deliver_after=timedelta(milliseconds=900)))
    await producer.send(Message(TOPIC, b"past", deliver_at=(now - 5000) / 1000))
    await producer.send(Message(TOPIC, b"far", deliver_at=datetime.now(UTC) + timedelta(days=2, hours=20)))
    broker = cluster.broker()
    at = {record.body: record for record in await until_stored(broker, TOPIC, 3)}
    assert now + 1700 <= at[b"at"].store_timestamp
    assert now + 900 <= at[b"after"].store_timestamp
    assert "REAL_TOPIC" not in at[b"past"].properties
    assert now + 1700 <= int(at[b"at"].properties["TIMER_DEQUEUE_MS"]) <= at[b"at"].store_timestamp
    info = await cluster_info(cluster)
    assert info["timerDelivered"] == "2"
    assert info["timerPending"] == "1"
    assert int(info["timerDeliveryErrorP99Ms"]) < 1000  # a slot's second would be more


async def cluster_info(cluster: LocalCluster) -> dict[str, str]:
    async with Admin(cluster.nameserver_address) as admin:
        return await admin.broker_runtime(cluster.broker_addresses[0])


async def test_a_message_beyond_the_window_is_stored_again_and_keeps_its_millisecond() -> None:
    async with (
        LocalCluster(store_config={"timer_roll_window_slot": 3, "timer_max_delay_sec": 1000}) as cluster,
        Producer(cluster.nameserver_address, "senders", clock=cluster.clock) as producer,
    ):
        now = cluster.clock.now_ms()
        await producer.send(Message(TOPIC, b"far", deliver_after=20.25))
        broker = cluster.broker()
        (timer,) = (each for each in broker.features if each.name == "timer")
        service = cast(Any, timer)._service
        for _ in range(12):
            clock_of(cluster).advance(1.75)
            await wait_until(
                lambda: service.behind_ms < 1_000 and service.progress.behind_messages == 0,
                "the timers are up to date",
            )
        (record,) = await until_stored(broker, TOPIC, 1)
        assert record.store_timestamp >= now + 20_250
        assert int(record.properties["TIMER_ROLL_TIMES"]) >= 3
        assert abs(int(record.properties["TIMER_DELIVER_MS"]) - now - 20_250) < 1000
        assert cluster.broker().store.max_offset(WHEEL_TIMER_TOPIC, 0) >= 4


async def test_times_that_cannot_be_are_refused(cluster: LocalCluster, producer: Producer) -> None:
    with pytest.raises(MessageIllegal, match="259200000ms"):
        await producer.send(Message(TOPIC, b"", deliver_after=timedelta(days=30)))
    with pytest.raises(MessageIllegal, match="TIMER_DELIVER_MS is 'soon'"):
        await producer.send(Message(TOPIC, b"", properties={"TIMER_DELIVER_MS": "soon"}))
    with pytest.raises(MessageIllegal, match="TIMER_DEL_UNIQKEY needs a time"):
        await producer.send(Message(TOPIC, b"", properties={"TIMER_DEL_UNIQKEY": "x"}))
    with pytest.raises(UsageError, match="without a time zone"):
        Message(TOPIC, b"", deliver_at=datetime(2026, 1, 1))
    with pytest.raises(UsageError, match="one of delay_level, deliver_at and deliver_after"):
        Message(TOPIC, b"", deliver_after=1, delay_level=1)
    with pytest.raises(UsageError, match="0 or above"):
        Message(TOPIC, b"", deliver_after=-1)
    with pytest.raises(UsageError, match="seconds since the epoch"):
        Message(TOPIC, b"", deliver_at=1_800_000_000_000)


async def test_a_broker_without_a_wheel_says_so() -> None:
    async with (
        LocalCluster(store_config={"timer_wheel_enable": False}) as cluster,
        Producer(cluster.nameserver_address, "senders") as producer,
    ):
        with pytest.raises(SendFailed, match="timerWheelEnable=true"):
            await producer.send(Message(TOPIC, b"", deliver_after=1))
        assert not (cluster.directory / "broker-a" / "timerwheel").exists()


async def test_a_delay_level_wins_over_a_time(cluster: LocalCluster, producer: Producer) -> None:
    result = await producer.send(
        Message(TOPIC, b"level", delay_level=18, properties={"TIMER_DELAY_MS": "1000"})
    )
    assert result.recall_handle == ""
    (record,) = stored(cluster.broker(), "SCHEDULE_TOPIC_XXXX")
    assert "TIMER_DELAY_MS" not in record.properties


async def test_a_recalled_message_never_comes(cluster: LocalCluster, producer: Producer) -> None:
    first = await producer.send(Message(TOPIC, b"recalled", deliver_after=30))
    second = await producer.send(Message(TOPIC, b"kept", deliver_after=30))
    assert await producer.recall(TOPIC, first.recall_handle) == first.message_id
    assert await producer.recall(TOPIC, first.recall_handle) == first.message_id  # as RocketMQ: again is fine
    clock_of(cluster).advance(32)
    (record,) = await until_stored(cluster.broker(), TOPIC, 1)
    assert record.body == b"kept"
    clock_of(cluster).advance(5)
    await asyncio.sleep(0.05)
    await until_stored(cluster.broker(), TOPIC, 1)
    with pytest.raises(RemoteError, match="was due in the second") as refused:
        await producer.recall(TOPIC, second.recall_handle)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION


@pytest.mark.parametrize("with_topic", [False, True])
async def test_a_recall_takes_back_no_message_of_another_topic(
    cluster: LocalCluster, producer: Producer, admin: Admin, with_topic: bool
) -> None:
    broker = cluster.broker()
    setting = {"appendTopicForTimerDeleteKey": str(with_topic).lower()}
    await admin.update_broker_config(broker.address, setting)
    kept = await producer.send(Message(TOPIC, b"kept", deliver_after=30))
    gone = await producer.send(Message(TOPIC, b"gone", deliver_after=30))
    await producer.send(Message("Other", b"makes the topic"))
    handle = decode_recall_handle(kept.recall_handle)
    forged = dataclasses.replace(handle, topic="Other").encode()
    assert await producer.recall("Other", forged) == kept.message_id  # as for anything that does not wait
    await producer.recall(TOPIC, gone.recall_handle)
    written = {record.properties.get("TIMER_DEL_UNIQKEY") for record in stored(broker, WHEEL_TIMER_TOPIC)}
    assert (f"{TOPIC}+{gone.message_id}" if with_topic else gone.message_id) in written
    # What is written in the other form counts as well.
    await admin.update_broker_config(
        broker.address, {"appendTopicForTimerDeleteKey": str(not with_topic).lower()}
    )
    clock_of(cluster).advance(32)
    (record,) = await until_stored(broker, TOPIC, 1)
    assert record.body == b"kept"


async def test_a_message_that_names_a_record_takes_back_none_of_another_topic(
    cluster: LocalCluster, producer: Producer
) -> None:
    broker = cluster.broker()
    await producer.send(Message(TOPIC, b"kept", deliver_after=30))
    (waiting,) = stored(broker, WHEEL_TIMER_TOPIC)
    forged = {"TIMER_DEL_UNIQKEY": "any", "AEROBEE_DEL_OFFSET": str(waiting.physical_offset)}
    await producer.send(Message("Other", b"takes back", deliver_after=30, properties=forged))
    clock_of(cluster).advance(32)
    (record,) = await until_stored(broker, TOPIC, 1)
    assert record.body == b"kept"


async def test_a_recall_may_come_in_the_second_before(cluster: LocalCluster, producer: Producer) -> None:
    """On a busy machine a recall may take the whole of that second: then the next message is tried."""
    clock = clock_of(cluster)
    for number in itertools.count():
        now, body = clock.now_ms(), b"%d" % number
        due_ms = now - now % 1000 + 2_500
        result = await producer.send(Message(TOPIC, body, deliver_at=due_ms / 1000))
        clock.advance((1000 - clock.now_ms() % 1000) / 1000)
        try:
            await producer.recall(TOPIC, result.recall_handle)
        except RemoteError:
            assert clock.now_ms() >= due_ms - 500, "refused although its second had not begun"
            continue
        break
    clock.advance(5)
    await asyncio.sleep(0.05)
    assert body not in [record.body for record in stored(cluster.broker(), TOPIC)]


@pytest.mark.parametrize(
    ("topic", "handle", "code"),
    [
        (TOPIC, "bm8gaGFuZGxl", ResponseCode.ILLEGAL_OPERATION),
        (TOPIC, "%%%", ResponseCode.ILLEGAL_OPERATION),
        ("Unknown", "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAxIFU=", ResponseCode.TOPIC_NOT_EXIST),
        (TOPIC, "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAxIFU=", ResponseCode.ILLEGAL_OPERATION),
    ],
)
async def test_bad_handles_get_rocketmqs_codes(
    cluster: LocalCluster, producer: Producer, topic: str, handle: str, code: int
) -> None:
    await producer.send(Message(TOPIC, b"x"))
    request = RemotingCommand(
        RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "g"}
    )
    reply = await producer._session.remoting.invoke(cluster.broker_addresses[0], request)
    assert reply.code == code
    assert reply.remark


async def test_recall_is_off_unless_enabled() -> None:
    async with LocalCluster() as cluster, Producer(cluster.nameserver_address, "senders") as producer:
        result = await producer.send(Message(TOPIC, b"x", deliver_after=60))
        with pytest.raises(NoPermission, match="recallMessageEnable=true"):
            await producer.recall(TOPIC, result.recall_handle)


async def test_what_waits_is_listed_by_due_time_and_moved(cluster: LocalCluster, producer: Producer) -> None:
    now = cluster.clock.now_ms()
    results = {}
    for name, seconds in (("b", 600), ("a", 60), ("c", 100_000), ("gone", 700), ("gone_far", 200_000)):
        results[name] = await producer.send(
            Message(TOPIC, name.encode(), keys=(name,), deliver_after=seconds)
        )
    await producer.send(Message("Other", b"other", deliver_after=61))
    await producer.recall(TOPIC, results["gone"].recall_handle)
    await producer.recall(TOPIC, results["gone_far"].recall_handle)
    async with Admin(cluster.nameserver_address) as admin:
        listed = await admin.timers(topic=TOPIC)
        assert [timer.keys for timer in listed.timers] == [("a",), ("b",), ("c",)]
        assert listed.is_whole
        assert 590_000 < listed.timers[1].due_ms - now < 610_000
        some = await admin.timers(until_ms=now + 300_000)
        assert {timer.topic for timer in some.timers} == {TOPIC, "Other"}
        cut = await admin.timers(topic=TOPIC, count_max=1)
        assert not cut.is_whole
        handle = await admin.reschedule_timer(results["c"].recall_handle, (now + 5_500) / 1000)
        assert handle
        again = await admin.timers(topic=TOPIC)
        assert [timer.keys for timer in again.timers] == [("c",), ("a",), ("b",)]
        with pytest.raises(QueryNotFound, match="delivered, recalled or moved"):
            await admin.reschedule_timer(results["c"].recall_handle, (now + 9_000) / 1000)
        clock_of(cluster).advance(7)
        (record,) = await until_stored(cluster.broker(), TOPIC, 1)
        assert record.body == b"c"
        assert record.unique_id == results["c"].message_id
        assert await admin.reschedule_timer(results["b"].recall_handle, (now - 9_000) / 1000) == ""
        assert [record.body for record in await until_stored(cluster.broker(), TOPIC, 2)] == [b"c", b"b"]
        assert [timer.keys for timer in (await admin.timers(topic=TOPIC)).timers] == [("a",)]


async def test_a_message_can_be_moved_within_its_second(cluster: LocalCluster, producer: Producer) -> None:
    base = cluster.clock.now_ms() // 1000 * 1000 + 20_000
    result = await producer.send(Message(TOPIC, b"x", deliver_at=(base + 300) / 1000))
    async with Admin(cluster.nameserver_address) as admin:
        await admin.reschedule_timer(result.recall_handle, (base + 700) / 1000)
    clock_of(cluster).advance(22)
    (record,) = await until_stored(cluster.broker(), TOPIC, 1)
    assert record.store_timestamp >= base + 700
    clock_of(cluster).advance(3)
    await asyncio.sleep(0.05)
    await until_stored(cluster.broker(), TOPIC, 1)


@pytest.mark.parametrize("kill", [False, True])
async def test_a_restart_delivers_late_and_nothing_twice(
    cluster: LocalCluster, producer: Producer, kill: bool
) -> None:
    for number in range(40):
        await producer.send(Message(TOPIC, b"%d" % number, deliver_after=0.3 + number * 0.1))
    await producer.send(Message(TOPIC, b"level", delay_level=1))
    async with asyncio.timeout(60):
        while len(stored(cluster.broker(), TOPIC)) < 8:  # noqa: ASYNC110 the store has no event for it
            await asyncio.sleep(0.01)
    if kill:
        await cluster.kill_broker(0)
    else:
        await cluster.stop_broker(0)
    clock_of(cluster).advance(60)
    await cluster.start_broker(0)
    records = await until_stored(cluster.broker(), TOPIC, 41)
    assert len({record.body for record in records}) == 41
    await asyncio.sleep(0.1)
    await until_stored(cluster.broker(), TOPIC, 41)


async def test_replicas_get_checkpoint_and_counts(cluster: LocalCluster, producer: Producer) -> None:
    await producer.send(Message(TOPIC, b"x", deliver_after=600))
    address = cluster.broker_addresses[0]
    async with asyncio.timeout(60):
        while True:
            reply = await producer._session.remoting.invoke(
                address, RemotingCommand(RequestCode.GET_TIMER_CHECK_POINT)
            )
            assert len(reply.body) == 56
            checkpoint = decode_timer_checkpoint(reply.body)
            if checkpoint is not None and checkpoint.queue_offset == 1:
                break
            clock_of(cluster).advance(0.5)
            await asyncio.sleep(0.02)
    reply = await producer._session.remoting.invoke(address, RemotingCommand(RequestCode.GET_TIMER_METRICS))
    assert b'"timingCount":{"Orders":{"count":1,' in reply.body


async def test_the_java_clients_captured_sends_and_recalls_are_answered_alike() -> None:
    clock = AdvancingClock()
    frames = captured("java-produce-timer")
    first = next(frame for frame in frames if frame.request_code == 310)
    born = int(first.header["extFields"]["g"])
    # One is due 5 s after the first was sent, another one was due 5 s before.
    clock.advance((born - 4_000 - clock.now_ms()) / 1000)
    async with (
        LocalCluster(
            clock=clock, broker_config={"recall_message_enable": True, "broker_name": "broker-a"}
        ) as cluster,
        Producer(cluster.nameserver_address, "senders") as producer,
    ):
        address, remoting = cluster.broker_addresses[0], producer._session.remoting
        answers = {f.header["opaque"]: f for f in frames if f.is_reply and f.request_code in (310, 370)}
        for frame in frames:
            if frame.is_reply or frame.request_code not in (310, 370):
                continue
            wanted = answers[frame.header["opaque"]].header
            request = RemotingCommand(frame.request_code, dict(frame.header["extFields"]), body=b"x")
            reply = await remoting.invoke(address, request)
            assert reply.code == wanted["code"], reply.remark
            assert reply.ext is not None
            assert set(reply.ext) == set(wanted["extFields"])
            if frame.request_code == 370:
                assert reply.ext["msgId"] == wanted["extFields"]["msgId"]


@pytest.mark.parametrize("with_wheel", [True, False])
@pytest.mark.parametrize("name", ["clean-shutdown", "killed"])
async def test_what_waits_in_rocketmqs_directory_is_delivered_here(
    name: str, with_wheel: bool, tmp_path: Path
) -> None:
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        members = [m for m in archive.getmembers() if with_wheel or not m.name.endswith("/timerwheel")]
        archive.extractall(tmp_path, members)
    clock = AdvancingClock()
    store = StoreConfig(
        store_path_root_dir=str(tmp_path / name),
        mapped_file_size_commit_log=262_144,
        mapped_file_size_consume_queue=4_000,
        mapper_file_size_batch_consume_queue=4_600,
        max_hash_slot_num=500,
        max_index_num=2_000,
        mapped_file_size_timer_log=65_520,
    )
    config = BrokerConfig(broker_name="broker-a", listen_port=0, bind_address="127.0.0.1")
    broker = Broker(config, store, clock=clock)
    due = {"clean-shutdown": 1_795_306_867_000, "killed": 1_795_306_980_000}[name]
    clock.advance((due - 3_000 - clock.now_ms()) / 1000)
    await broker.start()
    try:
        delayed = await until_stored(broker, "StoreDelay", 3)
        assert delayed[-1].body == b"delay level 18"
        assert [record.body for record in stored(broker, "StoreTimer")] == [b"timer 2 s"]
        clock.advance(5)
        timers = await until_stored(broker, "StoreTimer", 2)
        assert timers[-1].body == b"timer 1 day"
        assert timers[-1].store_timestamp >= due
        assert len(stored(broker, "StoreDelay")) == 3
    finally:
        await broker.stop()
