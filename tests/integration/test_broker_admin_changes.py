"""What administration does to a running broker: topics, groups, offsets, settings, relays, and requests that are wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee.clock import SystemClock
from aerobee.network import AsyncioNetwork
from aerobee.remoting import fastjson
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import LanguageCode, RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.testing.local_cluster import LocalCluster
from tests.waiting import wait_until


class Peer:
    """A client of the broker that notes what the broker asks it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.asked: list[RemotingCommand] = []
        self.answers: dict[int, bytes] = {}
        codes = (40, 220, 221, 307, 309)
        self.client = RemotingClient(
            clock=SystemClock(), network=AsyncioNetwork(), handlers=dict.fromkeys(codes, self._answer)
        )

    def _answer(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.asked.append(request)
        body = self.answers.get(request.code)
        return None if body is None else request.reply(body=body, remark="from the client")

    async def call(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **fields: Any
    ) -> RemotingCommand:
        texts = None if ext is None else {key: str(value) for key, value in ext.items()}
        request = RemotingCommand(code, texts, body, **fields)
        return await self.client.invoke(self.cluster.broker_addresses[0], request, timeout_s=60)

    async def json(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Any:
        reply = await self.call(code, ext, body)
        assert reply.code == 0, reply.remark
        return fastjson.loads(reply.body)

    async def offset(self, code: int, **ext: Any) -> int:
        reply = await self.call(code, ext)
        assert reply.code == 0, reply.remark
        assert reply.ext is not None
        return int(reply.ext["offset"])

    async def create_topic(self, topic: str, queues: int = 1, **changes: Any) -> RemotingCommand:
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        return await self.call(17, {**ext, **changes})

    async def send(self, topic: str, queue_id: int = 0, count: int = 1) -> None:
        for number in range(count):
            ext = {
                "a": "p", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000 + number,
                "h": 0, "i": "TAGS\x01TagA\x02", "j": 0, "k": "false", "m": "false",
            }  # fmt: skip
            assert (await self.call(310, ext, b"body")).code == 0

    async def join(self, group: str, topic: str, client_id: str = "c1", **fields: Any) -> None:
        data = ConsumerData(group, subscription_data_set=(SubscriptionData(topic, sub_version=1),))
        beat = HeartbeatData(client_id, (), (data,))
        assert (await self.call(34, {}, beat.encode(), **fields)).code == 0


@pytest.fixture
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    async with LocalCluster(broker_config=getattr(request, "param", None)) as cluster:
        peer = Peer(cluster)
        yield peer
        await peer.client.close()


# --- topics


async def test_a_topic_that_is_changed_keeps_what_was_not_named(peer: Peer) -> None:
    assert (await peer.create_topic("T", 4, attributes="+message.type=FIFO")).code == 0
    assert (await peer.create_topic("T", 8, perm=4)).code == 0
    config = await peer.json(351, {"topic": "T", "lo": "true"})
    assert (config["readQueueNums"], config["perm"]) == (8, 4)
    assert config["attributes"] == {"message.type": "FIFO"}
    version = (await peer.json(21, {}))["dataVersion"]["counter"]
    assert (await peer.create_topic("T", 8, perm=4)).code == 0
    assert (await peer.json(21, {}))["dataVersion"]["counter"] == version


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"topic": "a b"}, "allowing only"),
        ({"topic": ""}, "empty"),
        ({"topic": "x" * 128}, "at most 127"),
        ({"topic": "TBW102"}, "belongs to the broker"),
        ({"perm": 8}, "4 \\(read\\)"),
        ({"readQueueNums": 0}, "from 1 to 4096"),
        ({"writeQueueNums": 100_000}, "from 1 to 4096"),
        ({"topicFilterType": "ANY"}, "SINGLE_TAG or MULTI_TAG"),
        ({"attributes": "+message.type=ANY"}, "FIFO"),
        ({"attributes": "+no.such=1"}, "known are"),
    ],
)
async def test_an_illegal_topic_is_refused_with_what_is_allowed(
    peer: Peer, changes: dict[str, Any], allowed: str
) -> None:
    ext = {"topic": "T", **changes}
    reply = await peer.create_topic(ext.pop("topic"), **ext)
    assert reply.code == 29
    assert re.search(allowed, reply.remark or "")
    assert (await peer.call(351, {"topic": "T"})).code == 17


async def test_topics_are_listed_in_pages_until_the_total_is_reached(peer: Peer) -> None:
    configs = [{"topicName": f"T{number}", "readQueueNums": 1, "writeQueueNums": 1} for number in range(7)]
    assert (await peer.call(18, None, fastjson.dumps({"topicConfigList": configs}))).code == 0
    names: list[str] = []
    version, total = "", 1
    while len(names) < total:
        reply = await peer.call(21, {"topicSeq": len(names), "maxTopicNum": 4, "dataVersion": version})
        assert reply.ext is not None
        total = int(reply.ext["totalTopicNum"])
        body = fastjson.loads(reply.body)
        version = fastjson.dumps(body["dataVersion"]).decode()
        assert 0 < len(body["topicConfigTable"]) <= 4
        names += body["topicConfigTable"]
    assert len(set(names)) == total
    assert {f"T{number}" for number in range(7)} <= set(names)
    old = '{"counter":1,"stateVersion":0,"timestamp":1}'
    reply = await peer.call(21, {"topicSeq": 4, "maxTopicNum": 4, "dataVersion": old})
    assert list(fastjson.loads(reply.body)["topicConfigTable"]) == names[:4]
    assert len((await peer.json(21))["topicConfigTable"]) == total


async def test_a_deleted_topic_takes_messages_and_offsets_along(peer: Peer) -> None:
    await peer.create_topic("T")
    await peer.send("T", count=3)
    await peer.join("g", "T")
    await peer.call(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 2})
    assert (await peer.call(215, {"topic": "T"})).code == 0
    assert (await peer.call(351, {"topic": "T"})).code == 17
    assert (await peer.call(202, {"topic": "T"})).code == 17
    assert (await peer.json(208, {"consumerGroup": "g"}))["offsetTable"] == {}
    await peer.create_topic("T")
    assert await peer.offset(30, topic="T", queueId=0) == 0
    await peer.send("T")
    assert await peer.offset(30, topic="T", queueId=0) == 1


@pytest.mark.parametrize(
    "topic", ["", " ", "TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "rmq_sys_wheel_timer"]
)
async def test_the_brokers_own_topics_cannot_be_deleted(peer: Peer, topic: str) -> None:
    assert (await peer.call(215, {"topic": topic})).code == 29


async def test_queues_of_unconfigured_topics_are_removed(peer: Peer) -> None:
    await peer.create_topic("T")
    await peer.send("T")
    broker = peer.cluster.broker()
    broker.topics.delete("T")
    assert ("T", 0) in broker.store.queues
    assert (await peer.call(316)).code == 0
    assert ("T", 0) not in broker.store.queues


# --- offsets


async def test_committed_offsets_are_answered_and_unknown_ones_follow_the_young_queue_rule(
    peer: Peer,
) -> None:
    await peer.create_topic("T", 2)
    await peer.join("g", "T")
    asked = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    reply = await peer.call(14, asked)
    assert (reply.code, reply.ext) == (22, {})
    await peer.send("T")
    assert await peer.offset(14, **asked) == 0
    assert (await peer.call(14, {**asked, "setZeroIfNotFound": "false"})).code == 22
    assert (await peer.call(14, {**asked, "queueId": 1})).code == 22
    await peer.call(15, {**asked, "commitOffset": 1})
    assert await peer.offset(14, **asked) == 1


async def test_offsets_of_unknown_groups_and_topics_are_refused(peer: Peer) -> None:
    await peer.create_topic("T")
    ext = {"consumerGroup": "absent", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert (await peer.call(15, ext)).code == 26
    await peer.join("g", "T")
    assert (await peer.call(15, {**ext, "consumerGroup": "g", "topic": "U"})).code == 17
    assert (await peer.call(15, {**ext, "consumerGroup": "g", "commitOffset": -1})).code == 1
    assert (await peer.call(15, {**ext, "consumerGroup": "g", "commitOffset": "many"})).code == 1


async def test_a_reset_moves_the_next_pull_and_outlives_late_commits(peer: Peer) -> None:
    await peer.create_topic("T")
    await peer.send("T", count=5)
    await peer.join("g", "T")
    queue_fields = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    await peer.call(15, {**queue_fields, "commitOffset": 5})
    reset = {"group": "g", "topic": "T", "timestamp": 0, "isForce": "true", "queueId": -1, "offset": -1}
    table = (await peer.json(222, reset))["offsetTable"]
    assert list(table.values()) == [0]
    late = await peer.call(15, {**queue_fields, "commitOffset": 5})
    assert (late.code, late.remark) == (0, "Offset has been previously reset")
    pull = {
        **queue_fields, "queueOffset": 5, "maxMsgNums": 32, "sysFlag": 2, "commitOffset": 0,
        "suspendTimeoutMillis": 1000, "subVersion": 1,
    }  # fmt: skip
    reply = await peer.call(11, pull)
    assert reply.ext is not None
    assert (reply.code, reply.ext["nextBeginOffset"]) == (21, "0")
    assert await peer.offset(14, **queue_fields) == 0
    await peer.call(15, {**queue_fields, "commitOffset": 3})
    assert await peer.offset(14, **queue_fields) == 3
    # As at RocketMQ without force, too, forward.
    table = (await peer.json(222, {**reset, "timestamp": -1, "isForce": "false"}))["offsetTable"]
    assert list(table.values()) == [5]
    assert await peer.offset(14, **queue_fields) == 5
    table = (await peer.json(222, {**reset, "queueId": 0, "offset": 2}))["offsetTable"]
    assert list(table.values()) == [2]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group": "absent"}, 26),
        ({"topic": "U"}, 17),
        ({"queueId": 7}, 29),
        ({"queueId": 0, "offset": 9}, 29),
    ],
)
async def test_a_reset_of_what_is_not_there_is_refused(
    peer: Peer, changes: dict[str, Any], code: int
) -> None:
    await peer.create_topic("T")
    await peer.join("g", "T")
    ext = {"group": "g", "topic": "T", "timestamp": 0, "isForce": "true", "queueId": -1, "offset": -1}
    reply = await peer.call(222, {**ext, **changes})
    assert reply.code == code
    assert reply.remark


@pytest.mark.parametrize("peer", [{"use_server_side_reset_offset": False}], indirect=True)
@pytest.mark.parametrize("language", [LanguageCode.JAVA, LanguageCode.CPP])
async def test_a_reset_is_pushed_to_members_when_the_broker_is_told_so(
    peer: Peer, language: LanguageCode
) -> None:
    await peer.create_topic("T")
    await peer.send("T", count=2)
    ext = {"group": "g", "topic": "T", "timestamp": -1, "isForce": "true"}
    peer.cluster.broker().groups.find_or_create("g")
    assert (await peer.call(222, ext)).code == 206
    await peer.join("g", "T", language=int(language))
    await peer.json(222, ext)
    await wait_until(lambda: any(request.code == 220 for request in peer.asked))
    pushed = next(request for request in peer.asked if request.code == 220)
    assert pushed.is_oneway
    assert pushed.ext == {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
    table = fastjson.loads(pushed.body)["offsetTable"]
    if language is LanguageCode.CPP:
        assert table == [{"brokerName": "broker-a", "offset": 2, "queueId": 0, "topic": "T"}]
    else:
        assert table == {'{"brokerName":"broker-a","queueId":0,"topic":"T"}': 2}


async def test_members_are_asked_for_their_offsets(peer: Peer) -> None:
    await peer.create_topic("T")
    assert (await peer.call(223, {"group": "g", "topic": "T"})).code == 1
    await peer.join("g", "T")
    key = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
    peer.answers[221] = b'{"messageQueueTable":{' + key.encode() + b":7}}"
    body = await peer.json(223, {"group": "g", "topic": "T"})
    assert body == {"consumerTable": {"c1": {key: 7}}, "messageQueueTable": {}}


async def test_offsets_are_cloned_to_another_group(peer: Peer) -> None:
    await peer.create_topic("T", 2)
    await peer.join("g", "T")
    for queue_id in (0, 1):
        await peer.send("T", queue_id, count=5)
        await peer.call(
            15, {"consumerGroup": "g", "topic": "T", "queueId": queue_id, "commitOffset": queue_id + 4}
        )
    assert (await peer.call(314, {"srcGroup": "g", "destGroup": "h", "offline": "true"})).code == 0
    assert await peer.offset(14, consumerGroup="h", topic="T", queueId=1) == 5
    smallest = await peer.json(308, {"compareGroup": "h", "topic": "T", "filterGroups": "h"})
    assert smallest == {"correctionOffsets": {"0": 4, "1": 5}}


# --- groups


async def test_a_group_is_changed_read_and_deleted(peer: Peer) -> None:
    config = {"groupName": "g", "retryMaxTimes": 3, "consumeEnable": False, "attributes": {}}
    assert (await peer.call(200, None, fastjson.dumps(config))).code == 0
    stored = await peer.json(352, {"group": "g"})
    assert (stored["retryMaxTimes"], stored["consumeEnable"], stored["retryQueueNums"]) == (3, False, 1)
    assert (await peer.call(207, {"groupName": "g"})).code == 0
    assert "g" not in (await peer.json(201))["subscriptionGroupTable"]
    assert (await peer.call(207, {"groupName": "TOOLS_CONSUMER"})).code == 29
    for name in ("", "a b", "x" * 121):
        reply = await peer.call(200, None, fastjson.dumps({"groupName": name}))
        assert reply.code == 29
        assert reply.remark


async def test_reading_can_be_forbidden(peer: Peer) -> None:
    ext = {"group": "g", "topic": "T"}
    assert (await peer.json(353, ext))["readable"] is True
    assert (await peer.json(353, {**ext, "readable": "false"}))["readable"] is False
    assert (await peer.json(353, ext))["readable"] is False
    assert (await peer.json(353, {**ext, "readable": "true"}))["readable"] is True


# --- relays and locks


async def test_a_client_answers_the_tool_through_the_broker(peer: Peer) -> None:
    await peer.create_topic("T")
    await peer.join("g", "T")
    peer.answers[307] = b'{"properties":{}}'
    reply = await peer.call(307, {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"})
    assert (reply.code, reply.remark, reply.body) == (0, "from the client", b'{"properties":{}}')
    assert (await peer.call(307, {"consumerGroup": "g", "clientId": "other"})).code == 1
    assert (await peer.call(307, {"consumerGroup": "h", "clientId": "c1"})).code == 1


async def test_a_client_that_never_answers_ends_in_a_timeout(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.broker.admin.relay.RELAY_TIMEOUT_S", 0.2)
    await peer.create_topic("T")
    await peer.join("g", "T")
    reply = await peer.call(307, {"consumerGroup": "g", "clientId": "c1"})
    assert reply.code == 207
    assert "Timeout" in (reply.remark or "")


async def test_a_client_too_old_for_relays_is_not_asked(peer: Peer) -> None:
    await peer.create_topic("T")
    await peer.join("g", "T", version=61)
    reply = await peer.call(307, {"consumerGroup": "g", "clientId": "c1"})
    assert reply.code == 1
    assert "too low" in (reply.remark or "")


@pytest.mark.parametrize("message_id", ["zz", "00" * 16, "7F00000100002A9F0000000000FFFFFF"])
async def test_a_message_that_is_not_there_is_not_consumed_directly(peer: Peer, message_id: str) -> None:
    await peer.create_topic("T")
    await peer.join("g", "T")
    reply = await peer.call(309, {"consumerGroup": "g", "clientId": "c1", "msgId": message_id})
    assert reply.code == 1
    assert reply.remark
    assert not [request for request in peer.asked if request.code == 309]


async def test_a_queue_is_locked_by_one_client_at_a_time(peer: Peer) -> None:
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}

    def body(client_id: str) -> bytes:
        return fastjson.dumps({"clientId": client_id, "consumerGroup": "g", "mqSet": [queue]})

    assert await peer.json(41, None, body("c1")) == {"lockOKMQSet": [queue]}
    assert await peer.json(41, None, body("c2") + b"\n") == {"lockOKMQSet": []}
    assert (await peer.call(42, None, body("c1"))).code == 0
    assert await peer.json(41, None, body("c2")) == {"lockOKMQSet": [queue]}
    assert (await peer.call(41, None, b"{}")).code == 1


# --- the broker


async def test_settings_change_at_run_time_and_others_are_named(peer: Peer) -> None:
    text = b"autoCreateTopicEnable=false\ndefaultQueryMaxNum=33\nlistenPort=1\nnoSuchKey=1\n"
    reply = await peer.call(25, None, text)
    assert reply.code == 0
    assert "listenPort" in (reply.remark or "")
    assert "noSuchKey" in (reply.remark or "")
    reply = await peer.call(26)
    settings = dict(line.split("=", 1) for line in reply.body.decode().splitlines())
    assert (settings["autoCreateTopicEnable"], settings["defaultQueryMaxNum"]) == ("false", "33")
    assert settings["listenPort"] != "1"
    assert fastjson.loads((reply.ext or {})["version"].encode())["counter"] == 1
    broker = peer.cluster.broker()
    assert broker.config.auto_create_topic_enable is False
    assert broker.store.config.default_query_max_num == 33


async def test_a_broker_that_is_made_read_only_says_so_in_every_route(peer: Peer) -> None:
    await peer.create_topic("T")
    nameserver = peer.cluster.nameserver_address

    async def perm() -> int:
        request = RemotingCommand(105, {"topic": "T"})
        reply = await peer.client.invoke(nameserver, request, timeout_s=60)
        return int(fastjson.loads(reply.body)["queueDatas"][0]["perm"]) if reply.code == 0 else -1

    for permission in (4, 6):
        assert (await peer.call(25, None, b"brokerPermission=%d\n" % permission)).code == 0
        async with asyncio.timeout(60):
            while True:
                if await perm() == permission:
                    break
                await asyncio.sleep(0.005)
    assert (await peer.json(351, {"topic": "T"}))["perm"] == 6


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"autoCreateTopicEnable=maybe", 29),
        (b"defaultTopicQueueNums=-1", 29),
        (b"autoCreateTopicEnable=false\nfileReservedTime=x", 29),
        (b"autoCreateTopicEnable=false\nconfigBlackList=", 16),
        (b"autoCreateTopicEnable=\xff", 1),
    ],
)
async def test_a_wrong_setting_changes_nothing(peer: Peer, text: bytes, code: int) -> None:
    before = (await peer.call(26)).body
    reply = await peer.call(25, None, text)
    assert reply.code == code
    assert reply.remark
    assert (await peer.call(26)).body == before


async def test_a_group_gets_its_share_of_the_queues_from_the_broker(peer: Peer) -> None:
    await peer.create_topic("T", 5)
    body = {
        "clientId": "c1",
        "consumerGroup": "g",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": "T",
    }
    assert (await peer.json(400, None, fastjson.dumps(body)))["messageQueueAssignments"] == []
    await peer.join("g", "T", "c1")
    other = Peer(peer.cluster)
    await other.join("g", "T", "c2")
    shares = []
    for client_id in ("c1", "c2"):
        found = await peer.json(400, None, fastjson.dumps({**body, "clientId": client_id}))
        assert {item["mode"] for item in found["messageQueueAssignments"]} == {"PULL"}
        shares.append([item["messageQueue"]["queueId"] for item in found["messageQueueAssignments"]])
    assert shares == [[0, 1, 2], [3, 4]]
    await other.client.close()
    reply = await peer.call(401, None, b'{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,"topic":"T"}')
    assert reply.code == 0
    found = await peer.json(400, None, fastjson.dumps(body))
    assert {item["mode"] for item in found["messageQueueAssignments"]} == {"POP"}
    assert (await peer.call(401, None, b'{"consumerGroup":"g","mode":"PULL","topic":"T"}')).code == 0


async def test_counters_of_the_broker_appear_in_its_statistics(peer: Peer) -> None:
    await peer.create_topic("T")
    assert (await peer.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})).code == 1
    await peer.send("T", count=4)
    await peer.cluster.advance_clock(12)
    windows = await peer.json(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
    assert windows["statsMinute"]["sum"] == 4
    info = (await peer.json(28))["table"]
    assert info["msgPutTotalTodayNow"] == info["putMessageTimesTotal"] == "4"
    assert float(info["putTps"].split(" ")[0]) >= 0.0
    assert any(key.startswith("registeredAt_") for key in info)  # we ask as our own client does
    assert (await peer.json(202, {"topic": "T"}))["topicPutTps"] > 0


async def test_requests_without_their_fields_are_refused_one_by_one(peer: Peer) -> None:
    broker = peer.cluster.broker()
    lists = {code for code in broker.handlers if RequestCode(code).name.startswith("AEROBEE_LIST")}
    for code in sorted(broker.handlers.keys() - lists):
        if code in (
            21,
            25,
            26,
            28,
            43,
            45,
            60,
            61,
            201,
            305,
            306,
            316,
            317,
            328,
            329,
            402,
            905,
            906,
            907,
            200074,
        ):
            continue  # these have no field that must be there, and 905 gets no answer
        for ext, body in ((None, b""), ({}, b"\xff{"), ({"queueId": "x", "offset": "1e9"}, b"[]")):
            reply = await peer.call(code, ext, body)
            assert reply.code != 0, code
            assert reply.remark, code
    assert (await peer.create_topic("T")).code == 0
