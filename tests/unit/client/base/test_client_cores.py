"""Cores of the client: allocation, process queue, ids, faults, compression, subscriptions, routes."""

from __future__ import annotations

import datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.client import (
    Compression,
    average,
    average_by_circle,
    consistent_hash,
    fixed,
    machine_room,
    machine_room_nearby,
)
from aerobee.client.base.compression import compress, decompress
from aerobee.client.base.config import ConsumerConfig, ProducerConfig
from aerobee.client.base.topic_route import TopicRoute, from_template, publish_queues, subscribe_queues
from aerobee.client.base.unique_id import UniqueIds, month_bounds_ms
from aerobee.client.consumer.allocation import ring_hash
from aerobee.client.consumer.process_queue import ProcessQueue
from aerobee.client.consumer.subscription import Sql, subscribe
from aerobee.client.producer.fault_avoidance import FaultAvoidance, unavailable_ms
from aerobee.client.producer.publish_info import PublishInfo
from aerobee.client.session.codec import choose_codec
from aerobee.client.session.nameservers import parse_addresses
from aerobee.errors import ConfigError, MalformedRecord, UsageError
from aerobee.message import MessageQueue
from aerobee.remoting.body.route import BrokerData, QueueData


def queues_of(count, topic="TopicTest", broker="broker-a"):
    return [MessageQueue(topic, broker, n) for n in range(count)]


def shares(allocation, queue_count, client_count):
    queues = queues_of(queue_count, broker="room@broker")
    ids = [f"c{n}" for n in range(client_count)]
    return [[queue.queue_id for queue in allocation(client, queues, ids)] for client in ids]


# Tables of the reference: queues, clients, AVG, CIRCLE, MACHINE_ROOM.
TABLE = [
    (
        8,
        3,
        [[0, 1, 2], [3, 4, 5], [6, 7]],
        [[0, 3, 6], [1, 4, 7], [2, 5]],
        [[0, 1, 6], [2, 3, 7], [4, 5]],
    ),
    (
        10,
        4,
        [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]],
        [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]],
        [[0, 1, 8], [2, 3, 9], [4, 5], [6, 7]],
    ),
    (2, 3, [[0], [1], []], [[0], [1], []], [[0], [1], []]),
    (4, 4, [[0], [1], [2], [3]], [[0], [1], [2], [3]], [[0], [1], [2], [3]]),
]


@pytest.mark.parametrize(("queue_count", "client_count", "avg", "circle", "room"), TABLE)
def test_allocation_gives_the_shares_of_the_reference(queue_count, client_count, avg, circle, room):
    assert shares(average, queue_count, client_count) == avg
    assert shares(average_by_circle, queue_count, client_count) == circle
    assert shares(machine_room({"room"}), queue_count, client_count) == room


def test_consistent_hash_gives_the_check_values_of_the_reference():
    ids = ["10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"]
    assert ring_hash("10.0.0.1@1-0") == 2998294157
    assert ring_hash("MessageQueue [topic=TopicTest, brokerName=broker-a, queueId=0]") == 1987926524
    owned = {client[-3]: [q.queue_id for q in consistent_hash(client, queues_of(8), ids)] for client in ids}
    assert owned == {"1": [1, 4, 5], "2": [0, 6, 7], "3": [2, 3]}


client_ids = st.lists(st.text("abc0123456789@#.", min_size=1), min_size=1, max_size=12, unique=True).map(
    sorted
)


@given(queue_count=st.integers(0, 60), ids=client_ids)
@pytest.mark.parametrize(
    "allocation",
    [
        average,
        average_by_circle,
        consistent_hash,
        machine_room({"room"}),
        machine_room_nearby(lambda broker: broker[:4], lambda client: client[:1]),
    ],
)
def test_every_queue_is_owned_exactly_once(allocation, queue_count, ids):
    queues = queues_of(queue_count, broker="room@broker")
    owned = [queue for client in ids for queue in allocation(client, queues, ids)]
    assert sorted(owned) == queues


def test_machine_room_leaves_queues_of_other_rooms_alone():
    queues = sorted(
        [*queues_of(2, broker="near@b"), *queues_of(2, broker="far@b"), *queues_of(1, broker="plain")]
    )
    assert list(machine_room(["near"])("a", queues, ["a"])) == queues_of(2, broker="near@b")


def test_nearby_gives_queues_to_their_own_room_and_shares_the_rest():
    queues = sorted(
        [*queues_of(2, broker="east"), *queues_of(2, broker="west"), *queues_of(2, broker="north")]
    )
    allocate = machine_room_nearby(lambda broker: broker, lambda client: client.split("@")[0])
    ids = ["east@1", "west@1"]
    assert [(q.broker_name, q.queue_id) for q in allocate("east@1", queues, ids)] == [
        ("east", 0),
        ("east", 1),
        ("north", 0),
    ]


def test_fixed_gives_what_was_configured():
    assert list(fixed(queues_of(2))("x", queues_of(9), ["x", "y"])) == queues_of(2)


class TestProcessQueue:
    def test_commits_the_smallest_unfinished_offset(self):
        queue = ProcessQueue(10)
        for offset in range(10, 15):
            assert queue.put(offset, 100)
        assert queue.commit_offset == 10
        queue.finish(11)
        queue.finish(12)
        assert queue.commit_offset == 10
        queue.finish(10)
        assert queue.commit_offset == 13
        queue.finish_all([13, 14])
        assert queue.commit_offset == 15 == queue.next_offset
        assert queue.count == queue.cached_bytes == 0

    def test_takes_no_offset_twice(self):
        queue = ProcessQueue(0)
        assert queue.put(0, 1)
        assert not queue.put(0, 1)
        queue.finish(0)
        assert not queue.put(0, 1)
        assert not queue.finish(0)

    def test_skipped_offsets_move_an_empty_queue_on(self):
        queue = ProcessQueue(5)
        queue.pulled_up_to(9)
        assert queue.commit_offset == 9

    def test_is_full_by_count_by_bytes_and_by_span(self):
        queue = ProcessQueue(0)
        for offset in (0, 1, 500):
            queue.put(offset, 10)
        roomy = {"count_max": 10, "bytes_max": 1000, "span_max": 1000}
        assert not queue.is_full(**roomy)
        assert queue.is_full(**{**roomy, "count_max": 2})
        assert queue.is_full(**{**roomy, "bytes_max": 29})
        assert queue.is_full(**{**roomy, "span_max": 499})

    @given(st.lists(st.integers(0, 30), unique=True), st.integers(0, 30))
    def test_never_commits_past_an_unfinished_message(self, finished, count):
        queue = ProcessQueue(0)
        for offset in range(count):
            queue.put(offset, 1)
        queue.finish_all(finished)
        expected = next((offset for offset in range(count) if offset not in finished), count)
        assert queue.commit_offset == expected
        assert queue.count == len(set(range(count)) - set(finished))


class TestUniqueIds:
    NOW = 1_795_219_597_826

    @pytest.fixture(params=["python", "native"], autouse=True)
    def backend(self, request):
        try:
            self.ids = choose_codec(request.param).ids
        except ConfigError as error:
            pytest.skip(str(error))

    def test_has_the_layout_of_rocketmq(self):
        ids = self.ids(UniqueIds(ip="10.0.0.1", process_id=0x13F9E, salt=0x4E0E2F2A, counter=41))
        text = ids.next_id(self.NOW)
        assert text[:20] == "0A0000013F9E4E0E2F2A"
        assert int(text[20:28], 16) == self.NOW - month_bounds_ms(self.NOW)[0]
        assert text[28:] == "002A"

    def test_ids_differ_within_one_millisecond(self):
        ids = self.ids(UniqueIds(ip="10.0.0.1", process_id=1, salt=1))
        assert len({ids.next_id(self.NOW) for _ in range(65_536)}) == 65_536

    def test_ipv6_makes_56_digits(self):
        assert len(self.ids(UniqueIds(ip="::1", process_id=1, salt=1)).next_id(self.NOW)) == 56

    def test_month_begins_anew(self):
        end = int(datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC).timestamp() * 1000)
        ids = self.ids(UniqueIds(ip="10.0.0.1", process_id=1, salt=1))
        assert ids.next_id(end - 1)[20:28] != "00000000"
        assert ids.next_id(end)[20:28] == "00000000"


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [
        (10, 0),
        (50, 0),
        (100, 0),
        (550, 2000),
        (1800, 5000),
        (3000, 6000),
        (5000, 10_000),
        (10_000, 10_000),
        (15_000, 30_000),
    ],
)
def test_latency_decides_how_long_a_broker_is_avoided(latency_ms, expected):
    assert unavailable_ms(latency_ms) == expected


def test_slow_broker_is_avoided_until_its_time_is_over():
    faults = FaultAvoidance()
    faults.record("a", 600, 100.0)
    assert not faults.is_available("a", 101.9)
    assert faults.is_available("a", 102.0)
    faults.record_failure("a", 200.0)
    assert not faults.is_available("a", 209.9)
    faults.record("a", 5, 201.0)
    assert faults.is_available("a", 201.0)


def test_next_queue_avoids_the_broker_that_failed_and_those_that_are_slow():
    queues = sorted([*queues_of(2, broker="a"), *queues_of(2, broker="b"), *queues_of(2, broker="c")])
    info = PublishInfo(queues, {}, first_turn=0)
    faults = FaultAvoidance()
    faults.record_failure("b", 0.0)
    assert {info.next_queue(avoid={"a"}, faults=faults, now_s=1.0).broker_name for _ in range(9)} == {"c"}
    faults.record_failure("c", 5.0)
    faults.record_failure("a", 6.0)
    assert info.next_queue(faults=faults, now_s=6.0).broker_name == "b"  # the first to be back
    assert {PublishInfo(queues_of(3), {}, first_turn=0).next_queue(avoid={"broker-a"}).broker_name} == {
        "broker-a"
    }


@pytest.mark.parametrize("kind", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
@given(body=st.binary())
def test_compression_is_undone_by_its_flags(kind, body):
    packed, flags = compress(body, kind, 5)
    assert decompress(packed, flags) == body


def test_old_zlib_flag_and_plain_bodies_are_read():
    packed, _ = compress(b"hello" * 100, Compression.ZLIB, 5)
    assert decompress(packed, 1) == b"hello" * 100
    assert decompress(b"hello", 0) == b"hello"


@pytest.mark.parametrize("kind", [each for each in Compression if each is not Compression.NONE])
def test_what_compression_would_make_larger_stays_as_it_is(kind):
    body = Random(1).randbytes(5000)
    assert compress(body, kind, 5) == (body, 0)


@pytest.mark.parametrize("flags", [1, 257, 513, 769, 1025])
def test_broken_compressed_bodies_are_refused(flags):
    with pytest.raises(MalformedRecord):
        decompress(b"\x00garbage that is no stream", flags)


@pytest.mark.parametrize("kind", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
def test_decompression_is_bounded(kind):
    packed, flags = compress(bytes(80 * 1024 * 1024), kind, 1)
    with pytest.raises(MalformedRecord):
        decompress(packed, flags)


def test_subscription_texts():
    assert subscribe("t", "*", 1).wants("anything")
    both = subscribe("t", " TagA || TagC ", 7)
    assert both.wants("TagA")
    assert not both.wants("TagB")
    assert not both.wants(None)
    assert both.to_data().to_dict() == {
        "classFilterMode": False,
        "codeSet": [2598919, 2598921],
        "expressionType": "TAG",
        "subString": "TagA || TagC",
        "subVersion": 7,
        "tagsSet": ["TagA", "TagC"],
        "topic": "t",
    }
    assert subscribe("t", "sql: a > 1", 1).to_data().expression_type == "SQL92"
    assert subscribe("t", Sql("a > 1"), 1) == subscribe("t", "sql:a > 1", 1)
    assert subscribe("t", Sql("sql: a > 1"), 1).expression == "a > 1"
    for bad in ("TagA ||", Sql(" ")):
        with pytest.raises(UsageError):
            subscribe("t", bad, 1)


def route(*queue_datas, order=None, masters=("a", "b")):
    brokers = tuple(BrokerData("C", name, {0 if name in masters else 1: f"{name}:1"}) for name in ("a", "b"))
    return TopicRoute("t", queue_datas, brokers, order)


def test_producers_write_where_a_master_is_and_consumers_read_everywhere():
    found = route(QueueData("a", 3, 2, 6), QueueData("b", 1, 2, 6), masters=("a",))
    assert publish_queues(found) == (MessageQueue("t", "a", 0), MessageQueue("t", "a", 1))
    assert len(subscribe_queues(found)) == 4


def test_permissions_decide_who_uses_a_queue():
    found = route(QueueData("a", 2, 2, 4), QueueData("b", 2, 2, 2))
    assert {queue.broker_name for queue in publish_queues(found)} == {"b"}
    assert {queue.broker_name for queue in subscribe_queues(found)} == {"a"}


def test_order_config_fixes_the_queues():
    found = route(QueueData("a", 8, 8, 6), order="a:2;b:1")
    assert publish_queues(found) == (
        MessageQueue("t", "a", 0),
        MessageQueue("t", "a", 1),
        MessageQueue("t", "b", 0),
    )


def test_template_gives_as_many_queues_as_both_sides_want():
    assert len(publish_queues(from_template("new", route(QueueData("a", 8, 8, 7)), 4))) == 4
    assert len(publish_queues(from_template("new", route(QueueData("a", 2, 2, 7)), 4))) == 2


def test_nameserver_lists():
    assert parse_addresses("a:1; b:2;;a:1") == ("a:1", "b:2")
    assert parse_addresses(["a:1", "b:2"]) == ("a:1", "b:2")
    for wrong in ("", "a", "a:b", "a:0", "a:70000", ":1"):
        with pytest.raises(UsageError):
            parse_addresses(wrong)


def test_configs_refuse_what_cannot_work():
    for wrong in (
        lambda: ConsumerConfig(concurrency=0),
        lambda: ConsumerConfig(pull_timeout_s=5.0),
        lambda: ProducerConfig(retry_count_max=-1),
        lambda: ProducerConfig(compression_level=0),
    ):
        with pytest.raises(ConfigError):
            wrong()
