"""A slow disk: no request waits for the files of another one, and acknowledged data is on the disk.

The disk is a RealDisk that can delay writes of some files, and that notes writes in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.send import new_topics
from aerobee.broker.state.config import BrokerConfig
from aerobee.clock import SystemClock
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from tests.waiting import wait_until

WAIT_S = 120.0


class SlowDisk(RealDisk):
    """`held`: parts of paths whose replacement waits until release(). `failing`: those that the disk refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.loop_thread = 0  # 0: writes of that thread are not looked at
        self.writes_in_loop: list[str] = []
        self.held = ""
        self.failing = ""
        self.begun = threading.Event()
        self._released = threading.Event()

    def hold(self, part: str) -> None:
        self._released.clear()
        self.begun.clear()
        self.held = part

    def release(self) -> None:
        self.held = ""
        self._released.set()

    def replace_file(self, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
        self._note(path)
        if self.failing and self.failing in path:
            raise OSError(errno.EIO, "Input/output error", path)
        if self.held and self.held in path:
            self.begun.set()
            assert self._released.wait(WAIT_S)
        super().replace_file(path, data, like=like, is_private=is_private)

    def sync_file(self, path: str) -> None:
        self._note(path)
        super().sync_file(path)

    def _note(self, path: str) -> None:
        if threading.get_ident() == self.loop_thread:
            self.writes_in_loop.append(path)


@dataclass
class World:
    broker: Broker
    disk: SlowDisk
    client: RemotingClient
    config: Path

    async def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", timeout_s: float = WAIT_S
    ) -> RemotingCommand:
        request = RemotingCommand(code, ext=ext, body=body)
        return await self.client.invoke(self.broker.address, request, timeout_s=timeout_s)

    async def send(
        self, topic: str, body: bytes = b"body", *, queue: int = 0, template: str = "TBW102"
    ) -> RemotingCommand:
        ext = {"a": "producers", "b": topic, "c": template, "d": "4", "e": str(queue), "f": "0", "g": "0", "h": "0",
               "i": "", "j": "0", "k": "false"}  # fmt: skip
        return await self.call(RequestCode.SEND_MESSAGE_V2, ext, body)

    def names(self, file: str, table: str) -> set[str]:
        return set(json.loads((self.config / file).read_text())[table])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    disk = SlowDisk()
    broker = Broker(
        BrokerConfig(broker_name="b", listen_port=0, auto_create_topic_enable=True, broker_ip1="127.0.0.1"),
        StoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=4 << 20),
        disk=disk,
    )
    await broker.start()
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    disk.loop_thread = threading.get_ident()
    try:
        yield World(broker, disk, client, tmp_path / "config")
    finally:
        disk.loop_thread = 0
        disk.failing = ""
        disk.release()
        await client.close()
        await broker.stop()


async def begun(disk: SlowDisk) -> None:
    assert await asyncio.to_thread(disk.begun.wait, WAIT_S)


async def test_a_topic_created_by_a_send_delays_no_other_send(world: World) -> None:
    assert (await world.send("known")).code == 0
    world.disk.hold("topics.json")
    first = asyncio.create_task(world.send("fresh", b"0"))
    await begun(world.disk)
    others = [asyncio.create_task(world.send("fresh", str(number).encode())) for number in (1, 2)]
    for _ in range(5):
        assert (await world.send("known")).code == 0, "others' sends continue"
    assert not first.done(), "its acknowledgement waits for the topic's file"
    assert world.broker.topics.get("fresh") is None
    world.disk.release()
    replies = await asyncio.gather(first, *others)
    assert [reply.code for reply in replies] == [0, 0, 0]
    assert [reply.ext["queueOffset"] for reply in replies if reply.ext] == ["0", "1", "2"]
    assert "fresh" in world.names("topics.json", "topicConfigTable")
    assert world.disk.writes_in_loop == []


async def test_no_more_sends_wait_for_a_topic_than_the_broker_holds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_topics, "WAITING_SENDS_MAX", 3)
    for _ in range(2):  # who waited has left the count again, served or refused
        world.disk.hold("topics.json")
        topic = f"fresh{world.broker.store.log.end}"
        first = asyncio.create_task(world.send(topic))
        await begun(world.disk)
        others = [asyncio.create_task(world.send(topic)) for _ in range(2)]
        await wait_until(lambda: world.broker.topics._changes.queued_count == 2)
        busy = await world.send(topic)
        assert (busy.code, "3 sends wait" in (busy.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
        assert (await world.send("TBW102")).code == 0, "a topic that is there is open to all"
        world.disk.release()
        assert [reply.code for reply in await asyncio.gather(first, *others)] == [0, 0, 0]
        assert (await world.send(topic)).code == 0


async def test_sends_to_a_new_topic_keep_their_order(world: World) -> None:
    replies = await asyncio.gather(*(world.send("fresh", str(number).encode()) for number in range(200)))
    assert {(reply.code, reply.remark) for reply in replies} == {(0, None)}
    assert [int(reply.ext["queueOffset"]) for reply in replies if reply.ext] == list(range(200))


async def test_a_send_whose_topic_cannot_be_saved_is_refused_and_stores_nothing(world: World) -> None:
    end = world.broker.store.log.end
    world.disk.failing = "topics.json"
    reply = await world.send("fresh")
    assert reply.code != 0
    assert "topics.json could not be written" in (reply.remark or "")
    assert world.broker.topics.get("fresh") is None
    assert world.broker.store.log.end == end
    world.disk.failing = ""
    assert (await world.send("fresh")).code == 0


async def test_a_killed_broker_has_every_topic_with_an_acknowledged_message(world: World) -> None:
    for number in range(5):
        assert (await world.send(f"fresh{number}")).code == 0
        assert f"fresh{number}" in world.names("topics.json", "topicConfigTable")


async def test_what_administrators_change_is_durable_when_it_is_answered(world: World) -> None:
    group = {
        "groupName": "readers",
        "consumeEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
    }
    topic = {"topic": "made", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
             "topicSysFlag": "0", "order": "false"}  # fmt: skip
    mode = {"topic": "made", "consumerGroup": "readers", "mode": "POP", "popShareQueueNum": 0}
    lock = {
        "consumerGroup": "readers",
        "clientId": "c",
        "mqSet": [{"topic": "made", "brokerName": "b", "queueId": 0}],
    }
    steps: list[tuple[int, dict[str, str] | None, object, str]] = [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic, None, "topics.json"),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group, "subscriptionGroup.json"),
        (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "readers", "topic": "made", "readable": "false"}, None,
         "subscriptionGroup.json"),
        (RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode, "messageRequestMode.json"),
        (RequestCode.LOCK_BATCH_MQ, None, lock, "orderlyLocks.json"),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"}, None, "subscriptionGroup.json"),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "made"}, None, "topics.json"),
    ]  # fmt: skip
    for code, ext, body, file in steps:
        world.disk.hold(file)
        call = asyncio.create_task(world.call(code, ext, b"" if body is None else json.dumps(body).encode()))
        await begun(world.disk)
        assert (await world.call(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0, "the loop is free"
        assert not call.done()
        before = (world.config / file).read_bytes() if (world.config / file).exists() else b""
        world.disk.release()
        reply = await call
        assert reply.code == 0, reply.remark
        assert (world.config / file).read_bytes() != before
    assert world.disk.writes_in_loop == []


async def test_a_change_that_the_disk_refuses_is_an_error_and_changes_nothing(world: World) -> None:
    group = {
        "groupName": "readers",
        "consumeEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
    }
    world.disk.failing = "subscriptionGroup.json"
    reply = await world.call(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, json.dumps(group).encode()
    )
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "subscriptionGroup.json could not be written" in (reply.remark or "")
    assert world.broker.groups.get("readers") is None


async def test_consumers_and_retries_write_off_the_event_loop(world: World) -> None:
    sent = await world.send("jobs", b"job")
    assert sent.ext is not None
    offset = int(sent.ext["msgId"][-16:], 16)
    beat = {"clientID": "c", "consumerDataSet": [{"groupName": "workers", "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
            "subscriptionDataSet": []}], "producerDataSet": []}  # fmt: skip
    assert (await world.call(RequestCode.HEART_BEAT, None, json.dumps(beat).encode())).code == 0
    assert "%RETRY%workers" in world.names("topics.json", "topicConfigTable")
    back = {"group": "workers", "offset": str(offset), "delayLevel": "-1", "originTopic": "jobs"}
    assert (await world.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    commit = {"consumerGroup": "workers", "topic": "jobs", "queueId": "0", "commitOffset": "1"}
    assert (await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    world.broker._base._save_offsets()
    await world.broker.topics.settled()
    await world.broker.groups.settled()
    assert "%DLQ%workers" in world.names("topics.json", "topicConfigTable")
    assert "workers" in world.names("subscriptionGroup.json", "subscriptionGroupTable")
    assert world.disk.writes_in_loop == []


async def test_a_broker_that_stops_writes_what_it_had_in_memory(tmp_path: Path) -> None:
    disk = SlowDisk()
    config = BrokerConfig(broker_name="b", listen_port=0, broker_ip1="127.0.0.1")
    broker = Broker(config, StoreConfig(store_path_root_dir=str(tmp_path)), disk=disk)
    await broker.start()
    disk.failing = "config"
    broker.topics.create_dead_letter_topic("g")
    assert broker.groups.find_or_create("g") is not None
    broker.offsets.commit("g", "t", 0, 0)
    broker._base._save_offsets()
    await broker.topics.settled()
    await broker.groups.settled()
    disk.failing = ""
    await broker.stop()
    config_dir = tmp_path / "config"
    assert "%DLQ%g" in json.loads((config_dir / "topics.json").read_text())["topicConfigTable"]
    assert "g" in json.loads((config_dir / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
    assert "t@g" in (config_dir / "consumerOffset.json").read_text()
