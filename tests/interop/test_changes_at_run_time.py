"""Settings of RocketMQ that its mqadmin changes while a broker runs, and what they do to requests that no client of ours made.

Each runs at RocketMQ's broker as well (AEROBEE_INTEROP_TARGET=both), unless its text says why not.
"""

from __future__ import annotations

import base64
import contextlib
import json
import pathlib
import re
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator

from tests.interop.java_topics import make_group, make_topic
from tests.interop.raw_requests import FOUND, has_message, pop, send
from tests.interop.rocketmq import Broker, Cluster, Driver, NameServer, call, routed_brokers
from tests.ports import free_port
from tests.waiting import wait_for

PULL, MAX_OFFSET, RECALL, HEARTBEAT = 11, 30, 370, 34


@contextlib.contextmanager
def changed(driver: Driver, broker: Broker, **values: tuple[str, str]) -> Iterator[None]:
    """The first value of each key while the block runs, the second one afterwards; each set by mqadmin."""
    try:
        for key, (value, _) in values.items():
            change(driver, broker, key, value)
        yield
    finally:
        for key, (_, value) in values.items():
            change(driver, broker, key, value)


def change(driver: Driver, broker: Broker, key: str, value: str) -> None:
    out = driver.admin(
        broker.namesrv, "updateBrokerConfig", "-b", broker.address, "-k", key, "-v", value, with_errors=True
    )
    assert "update broker config success" in out, out
    assert f"{key}={value}" in call(broker.address, 26, {})[1].decode().splitlines()


def send_to_queues(driver: Driver, cluster: Cluster, topic: str, *queues: int) -> None:
    """A message to each of these queues by Java: in a topic of priorities the queue is the priority."""
    with driver.producer(cluster.namesrv) as producer:
        producer.send(
            [{"topic": topic, "body": f"p{queue}", "queue": queue, "broker": "broker-a"} for queue in queues]
        )


def popped_queues(fields: dict[str, str]) -> list[int]:
    """The queues of a pop's reply in the order in which its messages stand."""
    return [int(part.split(" ")[1]) for part in fields["startOffsetInfo"].split(";")]


def test_the_order_of_priorities(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic, queues=3, a="+message.type=PRIORITY")
    send_to_queues(driver, cluster, topic, 1, 0, 2)
    for ascending in ("true", "false", "true"):
        group = driver.unique("CG_changes")
        make_group(driver, cluster, group)
        with changed(driver, cluster.broker, priorityOrderAsc=(ascending, "true")):
            found = []
            for _ in range(3):
                code, fields = pop(cluster, topic, group, born=None, maxMsgNums="1")
                assert code == FOUND
                found += popped_queues(fields)
        assert found == ([2, 1, 0] if ascending == "true" else [0, 1, 2])


def max_offset(cluster: Cluster, topic: str, queue: int) -> int:
    header, _ = call(cluster.broker.address, MAX_OFFSET, {"topic": topic, "queueId": str(queue)})
    return int(header["extFields"]["offset"]) if header["code"] == 0 else 0


def test_what_comes_again_keeps_its_priority(cluster: Cluster, driver: Driver, topic: str) -> None:
    """useSeparateRetryQueue with queues added later, and popFromRetryProbabilityForPriority."""
    make_topic(driver, cluster, topic, queues=2, a="+message.type=PRIORITY")
    group = driver.unique("CG_changes")
    make_group(driver, cluster, group)
    retry = f"%RETRY%{group}_{topic}"

    def again(*queues: int) -> None:
        send_to_queues(driver, cluster, topic, *queues)
        before = [max_offset(cluster, retry, queue) for queue in range(4)]
        for _ in queues:
            assert pop(cluster, topic, group, born=None, invisibleTime="1500")[0] == FOUND
        expected = sum(before) + len(queues)
        wait_for(
            "the copies in the retry topic",
            lambda: sum(max_offset(cluster, retry, queue) for queue in range(4)) == expected,
            60,
        )

    with changed(
        driver,
        cluster.broker,
        useSeparateRetryQueue=("true", "false"),
        popFromRetryProbabilityForPriority=("100", "0"),
    ):
        again(0, 1)
        assert [max_offset(cluster, retry, queue) for queue in range(2)] == [1, 1]
        make_topic(driver, cluster, topic, queues=4, a="+message.type=PRIORITY")
        for _ in range(2):
            assert from_where(cluster, topic, group)[0] == "again"
        again(3)
        assert max_offset(cluster, retry, 3) == 1
        send_to_queues(driver, cluster, topic, 3)
        assert from_where(cluster, topic, group) == ("again", 3)
    with changed(driver, cluster.broker, popFromRetryProbabilityForPriority=("0", "0")):
        assert from_where(cluster, topic, group) == ("first", 3)


def from_where(cluster: Cluster, topic: str, group: str) -> tuple[str, int]:
    """What a pop got: from the retry topic ("again") or the topic itself ("first"), and the queue."""
    code, fields = pop(cluster, topic, group, born=None)
    assert code == FOUND
    source, queue, _ = fields["startOffsetInfo"].split(" ")
    return "first" if source == "0" else "again", int(queue)


def test_whether_a_lock_that_ran_out_is_told(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic, queues=1)
    send(driver, cluster, topic, 1)
    for told in ("false", "true"):
        group = driver.unique("CG_changes")
        make_group(driver, cluster, group)
        ordered = {"order": "true", "queueId": "0"}
        with changed(driver, cluster.broker, enableNotifyAfterPopOrderLockRelease=(told, "true")):
            now = str(round(time.time() * 1000))
            held = {**ordered, "attemptId": "one", "invisibleTime": "2000"}
            assert pop(cluster, topic, group, born=now, **held)[0] == FOUND
            waits = {**ordered, "attemptId": "two", "pollTime": "60000" if told == "true" else "4500"}
            _, took = has_message(cluster, topic, group, **waits, bornTime=now)
        # With a notification: after the two seconds. Without: when the request times out.
        assert 0.5 < took < 50 if told == "true" else took > 3.5


def test_a_recall_takes_back_no_message_of_another_topic(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    other = f"{topic}_other"
    for each in (topic, other):
        make_topic(driver, cluster, each, queues=1)
    address = cluster.broker.address
    with (
        changed(
            driver,
            cluster.broker,
            recallMessageEnable=("true", "false"),
            appendTopicForTimerDeleteKey=("true", "false"),
        ),
        driver.producer(cluster.namesrv) as producer,
    ):
        kept, gone = producer.send(
            [{"topic": topic, "body": body, "delay_ms": 6000} for body in ("kept", "gone")]
        )
        version, _, *rest = base64.urlsafe_b64decode(kept["recall_handle"]).decode().split(" ")
        forged = base64.urlsafe_b64encode(" ".join([version, other, *rest]).encode()).decode()
        call(address, RECALL, {"topic": other, "recallHandle": forged, "producerGroup": "unknown"})
        assert producer.call("recall", topic=topic, handle=gone["recall_handle"]) == gone["msg_id"]
        with driver.push(cluster.namesrv, topic) as consumer:
            assert [message["body"] for message in consumer.received(1, 60)] == ["kept"]
            time.sleep(2)
            assert [message["body"] for message in consumer.received()] == ["kept"]


def test_pulls_of_those_that_are_no_members(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic, queues=1)
    group = driver.unique("CG_changes")
    make_group(driver, cluster, group)
    send(driver, cluster, topic, 1)
    pull = {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    assert call(cluster.broker.address, PULL, pull)[0]["code"] == 0
    with changed(driver, cluster.broker, rejectPullConsumerEnable=("true", "false")):
        assert call(cluster.broker.address, PULL, pull)[0]["code"] == 24
        with driver.push(cluster.namesrv, topic) as member:
            assert [message["body"] for message in member.received(1)] == ["m0"]
    assert call(cluster.broker.address, PULL, pull)[0]["code"] == 0


def test_limits_are_what_the_tool_set(cluster: Cluster, driver: Driver, topic: str) -> None:
    """What is accepted is in force: a limit of sends in waiting, and whether there is one."""
    make_topic(driver, cluster, topic, queues=1)
    with changed(
        driver,
        cluster.broker,
        waitTimeMillsInSendQueue=("5000", "10000"),
        brokerFastFailureEnable=("false", "true"),
    ):
        send(driver, cluster, topic, 2)
    assert max_offset(cluster, topic, 0) == 2


def test_latency_of_sends_is_measured(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic, queues=1)
    send(driver, cluster, topic, 200)

    def latency() -> dict[str, str]:
        table = json.loads(call(cluster.broker.address, 28, {})[1])["table"]
        return {key: value for key, value in table.items() if key.startswith("putLatency")}

    wait_for("a latency above zero", lambda: any(float(value) > 0 for value in latency().values()), 90)
    assert {"putLatency99", "putLatency999"} <= set(latency())
    out = driver.admin(cluster.namesrv, "brokerStatus", "-b", cluster.broker.address)
    (shown,) = (
        line.split(":", 1)[1].strip() for line in out.splitlines() if line.startswith("putLatency99 ")
    )
    assert float(shown) >= 0


def test_topics_are_registered_in_parts_and_one_by_one_at_rocketmqs_nameserver(
    kind: str, driver: Driver, tmp_path: pathlib.Path
) -> None:
    """enableSplitRegistration with a part of three topics, and enableSingleTopicRegister."""
    nameserver = NameServer("rocketmq", tmp_path / "nameserver")
    broker = Broker(
        kind,
        tmp_path / "broker",
        nameserver.address,
        enableSplitRegistration="true",
        splitRegistrationSize="3",
        registerNameServerPeriod="10000",
    )

    def make(name: str, queues: int) -> None:
        out = driver.admin(
            nameserver.address,
            "updateTopic",
            "-b",
            broker.address,
            "-t",
            name,
            "-r",
            str(queues),
            "-w",
            str(queues),
        )
        assert "success" in out

    def is_known(name: str) -> bool:
        return routed_brokers(nameserver.address, name).get(broker.broker_name) == broker.address

    try:
        nameserver.start()
        broker.start()
        names = [f"Part{number}" for number in range(8)]
        for name in names:
            make(name, 2)
        for split in ("true", "false"):
            change(driver, broker, "enableSplitRegistration", split)
            nameserver.kill()
            nameserver.start()
            wait_for(f"all topics, split {split}", lambda: all(map(is_known, names)), 90)
        for number, single in enumerate(("true", "false")):
            change(driver, broker, "enableSingleTopicRegister", single)
            make(f"Single{number}", 3 + number)
            wait_for("the route", lambda number=number: is_known(f"Single{number}"), 60)
            _, body = call(
                nameserver.address, 105, {"topic": f"Single{number}", "acceptStandardJsonOnly": "true"}
            )
            assert json.loads(body)["queueDatas"][0]["readQueueNums"] == 3 + number
            assert all(map(is_known, names))
    finally:
        broker.kill()
        nameserver.kill()


def lag_series(port: int, group: str) -> dict[str, float]:
    """Metric name to value of a group's series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found = re.findall(rf'^(\w+)\{{[^}}]*consumer_group="{group}"[^}}]*\}} ([\d.Ee+]+)', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_lag_is_estimated_through_the_filter_of_a_member(
    kind: str, driver: Driver, tmp_path: pathlib.Path
) -> None:
    """estimateAccumulation: RocketMQ puts the estimate in rocketmq_consumer_lag_messages, here it has a separate series."""
    port = free_port()
    cluster = Cluster(
        kind, tmp_path, metricsExporterType="PROM", metricsPromExporterPort=str(port), metricsPromExporterHost="127.0.0.1",
        metricsLagIntervalMillis="1000",
    )  # fmt: skip
    name = (
        "rocketmq_consumer_lag_messages" if kind == "rocketmq" else "aerobee_consumer_lag_filtered_messages"
    )
    topic, group = driver.unique("Estimated_"), driver.unique("CG_estimated")
    try:
        cluster.start()
        make_topic(driver, cluster, topic, queues=1)
        make_group(driver, cluster, group)
        with driver.producer(cluster.namesrv) as producer:
            producer.send(
                [{"topic": topic, "body": "x", "tags": "odd" if n % 4 == 1 else "even"} for n in range(40)]
            )
        with member(cluster.broker.address, topic, group, "odd"):
            commit = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
            call(cluster.broker.address, 15, commit)
            wait_for("the estimate", lambda: lag_series(port, group).get(name) == 10, 60)
            change(driver, cluster.broker, "estimateAccumulation", "false")
            without = 40.0 if kind == "rocketmq" else None
            wait_for("no estimate", lambda: lag_series(port, group).get(name) == without, 60)
            change(driver, cluster.broker, "estimateAccumulation", "true")
            wait_for("the estimate again", lambda: lag_series(port, group).get(name) == 10, 60)
    finally:
        cluster.stop()


@contextlib.contextmanager
def member(address: str, topic: str, group: str, tag: str) -> Iterator[None]:
    """A consumer that says what it wants and asks for nothing; it is a member while its connection is open."""
    code = 0
    for char in tag:
        code = (31 * code + ord(char)) & 0xFFFFFFFF
    subscription = {
        "topic": topic, "subString": tag, "tagsSet": [tag], "codeSet": [code - (1 << 32) if code >> 31 else code],
        "subVersion": 1, "classFilterMode": False, "expressionType": "TAG",
    }  # fmt: skip
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "unitMode": False,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
    }  # fmt: skip
    body = json.dumps({"clientID": "raw@1", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()
    header = json.dumps(
        {"code": HEARTBEAT, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0}
    ).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as link:
        link.sendall(struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body)
        with link.makefile("rb") as stream:
            while True:  # the broker tells its members of a change before it answers
                (size,) = struct.unpack(">i", stream.read(4))
                frame = stream.read(size)
                told = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
                if told["flag"] & 1:
                    break
            assert told["code"] == 0
            yield
