"""RocketMQ's Java client 5.5.0 against the cluster under test: every way to send, push, lite pull and old pull."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.interop.java_topics import bodies, make_group, make_topic, numbered
from tests.interop.rocketmq import Cluster, Driver, DriverError, by_queue, commit_offset
from tests.waiting import wait_for


def test_sync_send_keeps_keys_tags_flag_properties_and_unicode(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    sent = {
        "topic": topic, "body": "grüße 你好 \U0001f680", "tags": "标签", "keys": "k1 k2", "flag": 7,
        "properties": {"colour": "grün", "size": "12"},
    }  # fmt: skip
    with driver.producer(cluster.namesrv) as producer, driver.push(cluster.namesrv, topic) as consumer:
        (result,) = producer.send([sent])
        assert result["status"] == "SEND_OK"
        assert result["broker"] == "broker-a"
        assert len(result["offset_msg_id"]) == 32
        (message,) = consumer.received(1)
    assert {name: message[name] for name in ("body", "tags", "flag", "keys")} == {
        name: sent[name] for name in ("body", "tags", "flag", "keys")
    }
    assert message["properties"].items() >= {"colour": "grün", "size": "12"}.items()
    assert (message["queue"], message["offset"], message["msg_id"]) == (
        result["queue"], result["offset"], result["msg_id"],
    )  # fmt: skip


def test_send_to_a_chosen_queue_numbers_offsets_without_gaps(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer:
        results = producer.send(numbered(topic, 10, queue=2, broker="broker-a"))
    assert [(result["queue"], result["offset"]) for result in results] == [
        (2, offset) for offset in range(10)
    ]


def test_async_send_answers_every_message(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer, driver.push(cluster.namesrv, topic) as consumer:
        results = producer.send(numbered(topic, 200), "async")
        assert {result.get("status", result.get("error")) for result in results} == {"SEND_OK"}
        assert bodies(consumer.received(200)) == sorted(f"m{number}" for number in range(200))


def test_oneway_messages_arrive(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer, driver.push(cluster.namesrv, topic) as consumer:
        producer.send(numbered(topic, 50), "oneway")
        assert bodies(consumer.received(50)) == sorted(f"m{number}" for number in range(50))


def test_a_batch_lands_contiguously_in_one_queue(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer, driver.push(cluster.namesrv, topic) as consumer:
        (result,) = producer.send(numbered(topic, 20, tags="TagB", keys="batchkey"), "batch")
        assert result["status"] == "SEND_OK"
        assert len(result["msg_id"].split(",")) == 20
        assert len(result["offset_msg_id"].split(",")) == 20
        messages = consumer.received(20)
    assert {message["queue"] for message in messages} == {result["queue"]}
    ordered = sorted(messages, key=lambda message: message["offset"])
    assert [message["offset"] for message in ordered] == list(range(result["offset"], result["offset"] + 20))
    assert [message["body"] for message in ordered] == [f"m{number}" for number in range(20)]
    assert [message["msg_id"] for message in ordered] == result["msg_id"].split(",")


def test_a_selector_keeps_each_shard_in_one_queue_in_order(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    with (
        driver.producer(cluster.namesrv) as producer,
        driver.push(cluster.namesrv, topic, orderly=True) as consumer,
    ):
        producer.send([{"topic": topic, "body": f"m{n:03}", "shard": n % 4} for n in range(80)], "selector")
        groups = by_queue(consumer.received(80))
    assert sorted(queue for _, queue in groups) == [0, 1, 2, 3]
    for (_, queue), messages in groups.items():
        assert [message["body"] for message in messages] == [f"m{n:03}" for n in range(80) if n % 4 == queue]


def test_a_large_body_is_compressed_and_arrives_whole(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    body = "aerobee 压缩 " * 20_000
    with (
        driver.producer(cluster.namesrv, compress_over=1024) as producer,
        driver.push(cluster.namesrv, topic) as consumer,
    ):
        producer.send([{"topic": topic, "body": body}])
        (message,) = consumer.received(1)
    assert message["body"] == body


def test_a_first_send_creates_the_topic(cluster: Cluster, driver: Driver, topic: str) -> None:
    with driver.producer(cluster.namesrv) as producer:
        assert producer.send(numbered(topic, 3))[0]["status"] == "SEND_OK"
        with driver.push(cluster.namesrv, topic) as consumer:
            assert bodies(consumer.received(3)) == ["m0", "m1", "m2"]
    assert '"writeQueueNums":4' in driver.admin(cluster.namesrv, "topicRoute", "-t", topic)


def test_a_message_over_the_limit_is_refused_with_code_13(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv, compress_over=100_000_000, retries=0) as producer:
        # 5 MiB: above the client's own limit of 4 MiB, which it checks itself; properties of 40,000 bytes are the broker's.
        with pytest.raises(DriverError, match=r"CODE: 13|too large|over max value"):
            producer.send([{"topic": topic, "body": "x" * (5 << 20)}])
        with pytest.raises(DriverError, match=r"CODE: 13"):
            producer.send([{"topic": topic, "body": "x", "properties": {"long": "y" * 40_000}}])
        assert producer.send(numbered(topic, 1))[0]["status"] == "SEND_OK"


def test_a_read_only_topic_offers_no_queue_to_producers(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic, p="4")
    with (
        driver.producer(cluster.namesrv, retries=0) as producer,
        pytest.raises(DriverError, match=r"No route info"),
    ):
        producer.send([{"topic": topic, "body": "x"}])


def test_two_members_share_queues_and_the_rest_takes_over_when_one_leaves(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    everything = {("broker-a", queue) for queue in range(4)}
    with driver.producer(cluster.namesrv) as producer, driver.push(cluster.namesrv, topic) as first:
        wait_for("one member to own everything", lambda: first.queues(topic) == everything)
        with driver.push(cluster.namesrv, topic, group=first.group) as second:
            wait_for(
                "an even split",
                lambda: (
                    len(first.queues(topic)) == len(second.queues(topic)) == 2
                    and first.queues(topic) | second.queues(topic) == everything
                ),
            )
            producer.send(
                [{"topic": topic, "body": f"m{n}", "queue": n % 4, "broker": "broker-a"} for n in range(40)]
            )
            wait_for("all messages", lambda: first.call("count") + second.call("count") >= 40)
            halves = first.received(), second.received()
            assert len(halves[0]) == len(halves[1]) == 20
            assert bodies(halves[0] + halves[1]) == sorted(f"m{n}" for n in range(40))
        wait_for("the first member to take over", lambda: first.queues(topic) == everything)
        producer.send(
            [{"topic": topic, "body": f"late{n}", "queue": n, "broker": "broker-a"} for n in range(4)]
        )
        assert bodies(first.received(24)[20:]) == [f"late{n}" for n in range(4)]


def test_a_new_member_continues_at_the_committed_offsets(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer:
        producer.send(numbered(topic, 12))
        with driver.push(cluster.namesrv, topic) as first:
            first.received(12)
        producer.send([{"topic": topic, "body": "after"}])
        with driver.push(cluster.namesrv, topic, group=first.group) as second:
            assert bodies(second.received(1)) == ["after"]


def test_every_broadcast_member_gets_every_message(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    with (
        driver.producer(cluster.namesrv) as producer,
        driver.push(cluster.namesrv, topic, broadcast=True) as first,
        driver.push(cluster.namesrv, topic, broadcast=True, group=first.group) as second,
    ):
        for member in (first, second):
            wait_for("all queues", lambda member=member: len(member.queues(topic)) == 4)
        producer.send(numbered(topic, 20))
        expected = sorted(f"m{number}" for number in range(20))
        assert bodies(first.received(20)) == expected
        assert bodies(second.received(20)) == expected


def test_a_consumer_gets_only_the_tags_it_asked_for(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    with (
        driver.producer(cluster.namesrv) as producer,
        driver.push(cluster.namesrv, topic, tags="TagA || TagC") as consumer,
    ):
        for tag in ("TagA", "TagB", "TagC", None):
            producer.send([{"topic": topic, "body": f"{tag}{n}", "tags": tag} for n in range(10)])
        messages = consumer.received(20)
        producer.send([{"topic": topic, "body": "last", "tags": "TagC"}])
        assert {message["tags"] for message in messages} == {"TagA", "TagC"}
        assert bodies(consumer.received(21)[20:]) == ["last"]


def test_a_new_group_starts_at_the_first_message_while_all_are_there(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    # For a group that never committed, a broker that still has offset 0 in memory answers 0. The client's wish
    # to start at the end or at a time counts only for queues whose beginning is gone.
    make_topic(driver, cluster, topic, 1)
    with driver.producer(cluster.namesrv) as producer:
        producer.send(numbered(topic, 3))
        for start in ("last", "20200101000000"):
            with driver.push(cluster.namesrv, topic, **{"from": start}) as consumer:
                assert bodies(consumer.received(3)) == ["m0", "m1", "m2"]


def test_a_parked_pull_is_answered_by_the_append(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic, 1)
    with driver.producer(cluster.namesrv) as producer, driver.push(cluster.namesrv, topic) as consumer:
        producer.send([{"topic": topic, "body": "warm"}])
        consumer.received(1)
        waits = []
        for number in range(5):
            begin = time.monotonic()
            producer.send([{"topic": topic, "body": f"m{number}"}])
            consumer.received(2 + number)
            waits.append(time.monotonic() - begin)
    # Polling without a wake-up takes 5 s and more a message.
    assert sorted(waits)[2] < 2.5, waits


def test_lite_pull_subscribe_polls_commits_and_continues(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer:
        producer.send(
            [{"topic": topic, "body": f"m{n}", "queue": n % 4, "broker": "broker-a"} for n in range(20)]
        )
        with driver.lite(cluster.namesrv, topic=topic) as consumer:
            assert bodies(consumer.call("poll", count=20, timeout_ms=20_000)) == sorted(
                f"m{n}" for n in range(20)
            )
            consumer.call("commit")
            for queue in range(4):
                assert consumer.call("committed", topic=topic, broker="broker-a", queue=queue) == 5
        producer.send([{"topic": topic, "body": "next"}])
        with driver.lite(cluster.namesrv, topic=topic, group=consumer.group) as again:
            assert bodies(again.call("poll", count=1, timeout_ms=20_000)) == ["next"]


def test_lite_pull_assign_seeks_to_offsets_and_times(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    queue_fields = {"topic": topic, "broker": "broker-a", "queue": 1}
    with driver.producer(cluster.namesrv) as producer, driver.lite(cluster.namesrv) as consumer:
        producer.send(
            [{"topic": topic, "body": f"m{n}", "queue": 1, "broker": "broker-a"} for n in range(10)]
        )
        assert len(consumer.call("queues", topic=topic)) == 4
        consumer.call("assign", topic=topic, broker="broker-a", queues=[1])
        consumer.call("seek_begin", **queue_fields)
        messages = consumer.call("poll", count=10, timeout_ms=20_000)
        assert [message["body"] for message in messages] == [f"m{n}" for n in range(10)]
        consumer.call("seek", **queue_fields, offset=7)
        assert [m["body"] for m in consumer.call("poll", count=3, timeout_ms=20_000)] == ["m7", "m8", "m9"]
        fifth = messages[5]
        first_of_that_ms = min(
            m["offset"] for m in messages if m["store_timestamp"] == fifth["store_timestamp"]
        )
        found = consumer.call("offset_by_time", **queue_fields, timestamp=fifth["store_timestamp"])
        assert found == first_of_that_ms
        assert (
            consumer.call(
                "offset_by_time", **queue_fields, timestamp=messages[-1]["store_timestamp"] + 60_000
            )
            == 10
        )
        assert consumer.call("offset_by_time", **queue_fields, timestamp=1) == 0
        consumer.call("seek_end", **queue_fields)
        producer.send([{"topic": topic, "body": "end", "queue": 1, "broker": "broker-a"}])
        assert bodies(consumer.call("poll", count=1, timeout_ms=20_000)) == ["end"]


def test_old_pull_consumer_finds_misses_and_corrects_offsets(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    queue_fields = {"topic": topic, "broker": "broker-a", "queue": 0}
    before_ms = int(time.time() * 1000) - 1000
    with driver.producer(cluster.namesrv) as producer, driver.pull(cluster.namesrv) as consumer:
        make_group(driver, cluster, consumer.group)
        sent = producer.send(
            [
                {"topic": topic, "body": f"m{n}", "queue": 0, "broker": "broker-a", "tags": "TagA"}
                for n in range(10)
            ]
        )
        assert len(consumer.call("queues", topic=topic)) == 4
        assert consumer.call("offsets", **queue_fields) == {"min": 0, "max": 10}
        found = consumer.call("pull", **queue_fields, offset=0)
        assert found["status"] == "FOUND"
        assert [message["body"] for message in found["messages"]] == [f"m{n}" for n in range(10)]
        assert (found["next"], found["min"], found["max"]) == (10, 0, 10)
        few = consumer.call("pull", **queue_fields, offset=4, count=3)
        assert [message["body"] for message in few["messages"]] == ["m4", "m5", "m6"]
        at_end = consumer.call("pull", **queue_fields, offset=10)
        assert (at_end["status"], at_end["next"]) == ("NO_NEW_MSG", 10)
        beyond = consumer.call("pull", **queue_fields, offset=1000)
        assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 10)
        unmatched = consumer.call("pull", **queue_fields, offset=0, tags="TagZ")
        assert (unmatched["status"], unmatched["next"]) == ("NO_MATCHED_MSG", 10)
        empty = consumer.call("pull", topic=topic, broker="broker-a", queue=3, offset=0)
        assert empty["status"] in ("NO_NEW_MSG", "OFFSET_ILLEGAL")
        assert empty["next"] == 0
        assert before_ms <= consumer.call("earliest", **queue_fields) <= before_ms + 60_000
        assert consumer.call("search", **queue_fields, timestamp=before_ms) == 0
        commit_offset(consumer, queue_fields, 6)
        viewed = consumer.call("view", topic=topic, msg_id=sent[3]["offset_msg_id"])
        assert (viewed["body"], viewed["offset"]) == ("m3", 3)


def test_messages_are_found_by_key_and_by_unique_id(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer, driver.pull(cluster.namesrv) as consumer:
        sent = producer.send(
            [{"topic": topic, "body": f"m{n}", "keys": f"{topic}k{n % 3} shared{topic}"} for n in range(9)]
        )
        for key, expected in (
            (f"{topic}k1", ["m1", "m4", "m7"]),
            (f"shared{topic}", [f"m{n}" for n in range(9)]),
        ):
            hits = wait_for(f"key {key}", lambda key=key, n=len(expected): _at_least(consumer, topic, key, n))
            assert bodies(hits) == expected
        assert consumer.call("view", topic=topic, msg_id=sent[5]["msg_id"])["body"] == "m5"


def _at_least(consumer: Any, topic: str, key: str, count: int) -> list[dict[str, Any]] | None:
    try:
        hits: list[dict[str, Any]] = consumer.call("query", topic=topic, key=key)
    except DriverError:  # nothing found yet is an exception in Java
        return None
    return hits if len(hits) >= count else None


def test_unknown_topics_have_no_route(cluster: Cluster, driver: Driver, topic: str) -> None:
    with (
        driver.pull(cluster.namesrv) as consumer,
        pytest.raises(DriverError, match=r"(?i)can not find message queue|not exist|no topic route|no route"),
    ):
        consumer.call("queues", topic=topic)
