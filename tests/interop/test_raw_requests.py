"""Requests as RocketMQ's proxy, tools and other clients send them, made without any client: POP, NOTIFICATION, groups, queues.

Each runs at RocketMQ's broker as well (AEROBEE_INTEROP_TARGET=both), which proves what it expects.
"""

from __future__ import annotations

import time

import pytest

from tests.interop.java_topics import make_group, make_topic
from tests.interop.raw_requests import ACK, CHANGE_INVISIBLE, FOUND, NOTHING, has_message, pop, send
from tests.interop.rocketmq import Cluster, Driver, call


def handle_of(fields: dict[str, str], broker_name: str) -> list[str]:
    """The handle of the one message of a pop's reply, as its parts."""
    retry, queue_id, start = fields["startOffsetInfo"].split(" ")
    offset = fields["msgOffsetInfo"].split(" ")[2]
    return [
        start,
        fields["popTime"],
        fields["invisibleTime"],
        fields["reviveQid"],
        retry,
        broker_name,
        queue_id,
        offset,
    ]


@pytest.mark.parametrize("born", [None, "0"], ids=["absent", "zero"])
def test_a_pop_and_a_notification_without_a_birth_time_are_of_now(
    cluster: Cluster, driver: Driver, topic: str, born: str | None
) -> None:
    group = driver.unique("CG_raw")
    make_topic(driver, cluster, topic)
    make_group(driver, cluster, group)
    send(driver, cluster, topic, 2)
    born_field = {} if born is None else {"bornTime": born}
    assert has_message(cluster, topic, group, **born_field)[0] == "true"
    for _ in range(2):
        assert pop(cluster, topic, group, born=born)[0] == FOUND
    assert pop(cluster, topic, group, born=born)[0] == NOTHING
    told, took = has_message(cluster, topic, group, pollTime="1500", **born_field)
    assert told == "false"
    assert took > 0.5, "a notification with nothing to tell waits"


def test_a_group_comes_to_be_when_its_settings_are_asked_for(cluster: Cluster, driver: Driver) -> None:
    group = driver.unique("CG_unknown")
    header, body = call(cluster.broker.address, 352, {"group": group})
    assert header["code"] == 0, header
    assert f'"groupName":"{group}"'.encode() in body
    header, _ = call(cluster.broker.address, 352, {"group": "no such group!"})
    assert header["code"] == 26


def test_handles_may_carry_more_than_eight_parts(cluster: Cluster, driver: Driver, topic: str) -> None:
    group = driver.unique("CG_raw")
    make_topic(driver, cluster, topic)
    make_group(driver, cluster, group)
    send(driver, cluster, topic, 1)
    now = str(round(time.time() * 1000))
    code, fields = pop(cluster, topic, group, born=now)
    assert code == FOUND
    handle = handle_of(fields, cluster.broker.broker_name)
    ext = {"consumerGroup": group, "topic": topic, "queueId": handle[6], "offset": handle[7]}
    text = " ".join([*handle, "4711", "more"])
    header, _ = call(
        cluster.broker.address, CHANGE_INVISIBLE, {**ext, "extraInfo": text, "invisibleTime": "30000"}
    )
    assert header["code"] == 0, header
    changed = header["extFields"]
    again = [
        handle[7],
        changed["popTime"],
        changed["invisibleTime"],
        changed["reviveQid"],
        *handle[4:],
        "4711",
    ]
    header, _ = call(cluster.broker.address, ACK, {**ext, "extraInfo": " ".join(again)})
    assert header["code"] == 0, header


def test_a_notification_says_no_while_another_attempt_holds_the_queue(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    group = driver.unique("CG_raw")
    make_topic(driver, cluster, topic, queues=1)
    make_group(driver, cluster, group)
    send(driver, cluster, topic, 2)
    now = str(round(time.time() * 1000))
    ordered = {"order": "true", "queueId": "0", "attemptId": "one"}
    code, fields = pop(cluster, topic, group, born=now, **ordered)
    assert code == FOUND
    other = {"order": "true", "queueId": "0", "attemptId": "two", "bornTime": now}
    assert has_message(cluster, topic, group, **other)[0] == "false"
    assert has_message(cluster, topic, group, **other | {"attemptId": "one"})[0] == "true"
    handle = handle_of(fields, cluster.broker.broker_name)
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "extraInfo": " ".join(handle),
        "offset": handle[7],
    }
    assert call(cluster.broker.address, ACK, ext)[0]["code"] == 0
    assert has_message(cluster, topic, group, **other)[0] == "true"


def test_a_notification_that_waits_hears_of_a_lock_that_ran_out(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    group = driver.unique("CG_raw")
    make_topic(driver, cluster, topic, queues=1)
    make_group(driver, cluster, group)
    send(driver, cluster, topic, 1)
    now = str(round(time.time() * 1000))
    ordered = {"order": "true", "queueId": "0", "attemptId": "one", "invisibleTime": "2000"}
    assert pop(cluster, topic, group, born=now, **ordered)[0] == FOUND
    told, took = has_message(
        cluster, topic, group, order="true", queueId="0", attemptId="two", pollTime="15000",
        bornTime=str(round(time.time() * 1000)),
    )  # fmt: skip
    assert told == "true"
    assert took > 0.5


def test_a_batch_queue_without_messages_has_minimum_offset_minus_one(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    driver.admin(
        cluster.namesrv, "updateTopic", "-b", cluster.broker.address, "-t", topic, "-r", "1", "-w", "1",
        "-a", "+queue.type=BatchCQ",
    )  # fmt: skip
    group = driver.unique("CG_raw")
    make_group(driver, cluster, group)
    address = cluster.broker.address
    queue = {"topic": topic, "queueId": "0"}
    pull = {
        **queue, "consumerGroup": group, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    assert call(address, 31, queue)[0]["extFields"]["offset"] == "-1"
    assert call(address, 30, queue)[0]["extFields"]["offset"] == "0"
    fields = call(address, 11, pull)[0]["extFields"]
    assert (fields["minOffset"], fields["maxOffset"], fields["nextBeginOffset"]) == ("-1", "0", "0")
    assert b'"minOffset":0' in call(address, 202, {"topic": topic})[1]
    send(driver, cluster, topic, 1)
    assert call(address, 31, queue)[0]["extFields"]["offset"] == "0"
