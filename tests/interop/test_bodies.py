"""Every answer to a RocketMQ peer, and every file that one may load, is parsed by that peer's own parsers."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from aerobee.nameserver import NameServer
from aerobee.nameserver.config import NameServerConfig
from aerobee.remoting.codes import RequestCode as Code
from tests.abuse.untrusted_peer import UntrustedPeer
from tests.integration.broker_calls import make_broker
from tests.interop.rocketmq import CLASS_PATH, JAVA
from tests.waiting import wait_until

P = "org.apache.rocketmq.remoting.protocol."
B = "org.apache.rocketmq.broker."
TIMER = "org.apache.rocketmq.store.timer.TimerMetrics$TimerMetricsSerializeWrapper"
# Request, its fields, the class that RocketMQ makes of the body.
AT_BROKER: tuple[tuple[Code, dict[str, str], str], ...] = (
    (Code.GET_ALL_TOPIC_CONFIG, {}, P + "body.TopicConfigAndMappingSerializeWrapper"),
    (Code.GET_ALL_TOPIC_CONFIG, {}, P + "body.TopicConfigSerializeWrapper"),
    (Code.GET_ALL_CONSUMER_OFFSET, {}, P + "body.ConsumerOffsetSerializeWrapper"),
    (Code.GET_ALL_DELAY_OFFSET, {}, B + "schedule.DelayOffsetSerializeWrapper"),
    (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, P + "body.SubscriptionGroupWrapper"),
    (Code.GET_ALL_MESSAGE_REQUEST_MODE, {}, P + "body.MessageRequestModeSerializeWrapper"),
    (Code.GET_TIMER_METRICS, {}, TIMER),
    (Code.GET_BROKER_RUNTIME_INFO, {}, P + "body.KVTable"),
    (Code.GET_BROKER_HA_STATUS, {}, P + "body.HARuntimeInfo"),
    (Code.GET_TOPIC_STATS_INFO, {"topic": "jobs"}, P + "admin.TopicStatsTable"),
    (Code.GET_CONSUME_STATS, {"consumerGroup": "workers", "topic": ""}, P + "admin.ConsumeStats"),
    (Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, P + "body.ConsumeStatsList"),
    (Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "workers"}, P + "body.ConsumerConnection"),
    (Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "workers"}, P + "header.GetConsumerListByGroupResponseBody"),
    (Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "senders"}, P + "body.ProducerConnection"),
    (Code.GET_ALL_PRODUCER_INFO, {}, P + "body.ProducerTableInfo"),
    (Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "jobs"}, P + "body.GroupList"),
    (Code.QUERY_TOPICS_BY_CONSUMER, {"group": "workers"}, P + "body.TopicList"),
    (Code.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "workers", "topic": "jobs"}, P + "body.QuerySubscriptionResponseBody"),
    (Code.QUERY_CONSUME_TIME_SPAN, {"topic": "jobs", "group": "workers"}, P + "body.QueryConsumeTimeSpanBody"),
    (Code.QUERY_CONSUME_QUEUE, {"topic": "jobs", "queueId": "0", "index": "0", "count": "10"}, P + "body.QueryConsumeQueueResponseBody"),
    (Code.QUERY_CORRECTION_OFFSET, {"filterGroups": "", "compareGroup": "workers", "topic": "jobs"}, P + "body.QueryCorrectionOffsetBody"),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, P + "body.TopicList"),
    (Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "jobs"}, P + "body.BrokerStatsData"),
    (Code.GET_TOPIC_CONFIG, {"topic": "jobs"}, P + "statictopic.TopicConfigAndQueueMapping"),
    (Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "workers"}, P + "subscription.SubscriptionGroupConfig"),
)  # fmt: skip
AT_NAMESERVER: tuple[tuple[Code, dict[str, str], str], ...] = (
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "jobs"}, P + "route.TopicRouteData"),
    (
        Code.GET_ROUTEINFO_BY_TOPIC,
        {"topic": "jobs", "acceptStandardJsonOnly": "true"},
        P + "route.TopicRouteData",
    ),
    (Code.GET_BROKER_CLUSTER_INFO, {}, P + "body.ClusterInfo"),
    (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, P + "body.TopicList"),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, P + "body.TopicList"),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}, P + "body.TopicList"),
    (
        Code.GET_BROKER_MEMBER_GROUP,
        {"clusterName": "DefaultCluster", "brokerName": "broker-a"},
        P + "body.GetBrokerMemberGroupResponseBody",
    ),
)
FILES = {
    "consumerOffset.json": B + "offset.ConsumerOffsetManager",
    "topics.json": P + "body.TopicConfigSerializeWrapper",
    "subscriptionGroup.json": B + "subscription.SubscriptionGroupManager",
    "delayOffset.json": B + "schedule.DelayOffsetSerializeWrapper",
    "consumerOrderInfo.json": B + "offset.MemoryConsumerOrderInfoManager",
    "messageRequestMode.json": B + "loadbalance.MessageRequestModeManager",
    "consumerFilter.json": B + "filter.ConsumerFilterManager",
    "timermetrics": TIMER,
}
MEMBER = {
    "clientID": "me@1",
    "consumerDataSet": [
        {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": "workers",
            "messageModel": "CLUSTERING", "unitMode": False,
            "subscriptionDataSet": [
                {"classFilterMode": False, "codeSet": [], "expressionType": "SQL92", "subString": "a > 1",
                 "subVersion": 1, "tagsSet": [], "topic": "jobs"}
            ],
        }
    ],
    "producerDataSet": [{"groupName": "senders"}],
}  # fmt: skip
GROUP = b'{"groupName":"workers","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16,"brokerId":0}'
MODE = b'{"topic":"jobs","consumerGroup":"workers","mode":"POP","popShareQueueNum":1}'


async def _use(peer: UntrustedPeer) -> None:
    """Something in every table."""
    assert (await peer.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP)).code == 0
    for properties in ("a\x012\x02", "DELAY\x011\x02", "TIMER_DELAY_SEC\x0160\x02", ""):
        assert (await peer.send_message("jobs", b"job", properties=properties)).code == 0
    assert (await peer.call(Code.HEART_BEAT, {}, json.dumps(MEMBER).encode())).code == 0
    assert (await peer.call(Code.SET_MESSAGE_REQUEST_MODE, {}, MODE)).code == 0
    offset = {
        "consumerGroup": "workers",
        "topic": "jobs",
        "queueId": "0",
        "commitOffset": "1",
        "offset": "1",
    }
    assert (await peer.call(Code.UPDATE_CONSUMER_OFFSET, offset)).code == 0
    pull = {
        "consumerGroup": "workers", "topic": "jobs", "queueId": "0", "queueOffset": "0", "maxMsgNums": "8", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    assert (await peer.call(Code.PULL_MESSAGE, pull)).code == 0
    pop = {
        "consumerGroup": "workers", "topic": "jobs", "queueId": "0", "maxMsgNums": "8", "invisibleTime": "60000",
        "pollTime": "0", "bornTime": "0", "initMode": "0", "exp": "*", "expType": "TAG", "order": "true",
    }  # fmt: skip
    assert (await peer.call(Code.POP_MESSAGE, pop)).code == 0


async def _bodies(path: Path) -> list[tuple[str, str, bytes]]:
    server = NameServer(NameServerConfig(listen_port=0, bind_address="127.0.0.1"))
    await server.start()
    broker = make_broker(path, namesrv_addr=server.address)
    await broker.start()
    found: list[tuple[str, str, bytes]] = []
    try:
        async with UntrustedPeer(broker.address) as peer, UntrustedPeer(server.address) as names:
            await _use(peer)

            async def routed() -> bool:
                return (await names.call(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "jobs"})).code == 0

            await wait_until(routed, "the topic is registered")
            for target, requests in ((peer, AT_BROKER), (names, AT_NAMESERVER)):
                for code, ext, kind in requests:
                    reply = await target.call(code, ext)
                    assert (reply.code, bool(reply.body)) == (0, True), (code, reply.code, reply.remark)
                    found.append((f"{code.name}:{kind.rpartition('.')[2]}", kind, bytes(reply.body)))
    finally:
        await broker.stop()
        await server.stop()
    for name, kind in FILES.items():
        file = path / "config" / name
        assert file.exists(), name
        found.append((name, kind, file.read_bytes()))
    return found


def _parsed(path: Path, bodies: list[tuple[str, str, bytes]]) -> dict[str, dict[str, Any]]:
    lines = "".join(f"{name} {kind} {base64.b64encode(body).decode()}\n" for name, kind, body in bodies)
    (path / "bodies").write_text(lines)
    told = subprocess.run(
        [*JAVA, "-cp", CLASS_PATH, "BodyParser", str(path / "bodies")],
        capture_output=True,
        timeout=120,
        check=True,
    )
    found = [json.loads(line) for line in told.stdout.splitlines() if line.startswith(b"{")]
    assert len(found) == len(bodies), told.stderr[-2000:]
    return {each["name"]: each for each in found}


async def test_rocketmqs_parsers_read_every_body(tmp_path: Path) -> None:
    bodies = await _bodies(tmp_path / "store")
    parsed = _parsed(tmp_path, bodies)
    assert {name: each["error"] for name, each in parsed.items() if "error" in each} == {}
    for parser in ("fastjson", "fastjson2"):
        offsets = parsed["GET_ALL_CONSUMER_OFFSET:ConsumerOffsetSerializeWrapper"][parser]
        assert '"jobs@workers":{0:1}' in offsets.replace('"0"', "0")
        assert "jobs@workers" in parsed["consumerOffset.json"][parser]
