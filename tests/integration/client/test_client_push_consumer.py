"""The push consumer against a small broker."""

from __future__ import annotations

import asyncio
import threading

import orjson
import pytest

from aerobee.client import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    MessageModel,
    Producer,
    PushConsumer,
    RetryLater,
    reject,
)
from aerobee.errors import ConnectFailed, UsageError
from aerobee.message import Message
from tests.waiting import wait_until

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST, drain_s=1.0)


async def fill(broker, count, **fields):
    async with Producer(broker.address, "PG") as producer:
        for n in range(count):
            await producer.send(Message("orders", b"%d" % n, **fields))


async def test_handler_gets_every_message_and_offsets_are_committed(broker):
    await fill(broker, 20, tag="a")
    seen = []

    async def handle(message):
        await asyncio.sleep(0)
        seen.append(message.body)

    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=FIRST
    ) as consumer:
        await wait_until(lambda: len(seen) == 20)
        await wait_until(lambda: len(consumer.owned) == 5)  # the retry topic's queue too
    assert sorted(seen) == sorted(b"%d" % n for n in range(20))
    assert [broker.offsets["G", "orders", n] for n in range(4)] == [5, 5, 5, 5]


async def test_plain_function_is_a_handler_too(broker):
    await fill(broker, 5)
    seen = []
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=seen.append, config=FIRST
    ):
        await wait_until(lambda: len(seen) == 5)
    assert sorted(message.body for message in seen) == [b"0", b"1", b"2", b"3", b"4"]
    assert sum(broker.offsets["G", "orders", n] for n in range(4)) == 5


async def test_held_pull_brings_a_new_message(broker):
    seen = []
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=seen.append, config=FIRST
    ):
        await wait_until(lambda: len(broker.parked) == 5)
        assert seen == []
        await fill(broker, 1)
        await wait_until(lambda: len(seen) == 1)
    assert seen[0].body == b"0"


async def test_no_more_handlers_run_than_the_bound_allows(broker):
    await fill(broker, 40)
    running = highest = done = 0

    async def handle(_message):
        nonlocal running, highest, done
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0.001)
        running -= 1
        done += 1

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, concurrency=3)
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=config
    ):
        await wait_until(lambda: done == 40)
    assert highest == 3


async def test_batch_handler_gets_lists(broker):
    await fill(broker, 20)
    sizes = []
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, batch_size=4)
    async with PushConsumer(
        broker.address,
        "G",
        subscriptions={"orders": "*"},
        handler=lambda messages: sizes.append(len(messages)),
        config=config,
    ):
        await wait_until(lambda: sum(sizes) == 20)
    assert max(sizes) == 4


async def test_failed_message_is_sent_back_and_then_counts_as_done(broker):
    await fill(broker, 1, tag="a")

    def handle(message):
        raise RetryLater("not now", delay_level=2)

    async with PushConsumer(broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=FIRST):
        await wait_until(lambda: broker.sent_back)
    fields = broker.sent_back[0]
    assert fields["group"] == "G"
    assert fields["delayLevel"] == "2"
    assert fields["originTopic"] == "orders"
    assert 1 in [broker.offsets["G", "orders", n] for n in range(4)]


@pytest.mark.parametrize("bound", [-1, 5])
async def test_message_that_is_not_taken_back_goes_to_the_retry_topic(broker, properties_of, bound):
    await fill(broker, 1, tag="a", keys=("k",))
    broker.refuse_send_back = True

    def handle(message):
        if not message.reconsume_times:
            raise ValueError("broken handler")

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, drain_s=1.0, retry_count_max=bound)
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=config
    ):
        await wait_until(lambda: broker.records["%RETRY%G", 0])
    properties = properties_of(broker.records["%RETRY%G", 0][0])
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["DELAY"] == "3"
    assert properties["RECONSUME_TIME"] == "1"
    assert properties.get("MAX_RECONSUME_TIMES") == (None if bound < 0 else "5")
    assert properties["KEYS"] == "k"
    request = next(request for request in broker.seen(310) if request.text("b") == "%RETRY%G")
    assert request.text("a") == "CLIENT_INNER_PRODUCER"
    assert request.text("j") == "1"
    assert request.field("l") == (None if bound < 0 else "5")  # without a bound: the group's setting


async def test_a_rejected_message_that_is_not_taken_back_is_a_dead_letter_by_its_header(
    broker, properties_of
):
    await fill(broker, 1, keys=("k",))
    broker.refuse_send_back = True

    def handle(message):
        reject("no such customer")

    async with PushConsumer(broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=FIRST):
        await wait_until(lambda: broker.records["%RETRY%G", 0])
    properties = properties_of(broker.records["%RETRY%G", 0][0])
    assert "DELAY" not in properties
    assert properties["DLQ_REASON"] == "no such customer"
    assert properties["DLQ_TRIES"] == "1"
    assert properties["LAST_ERROR"] == "Reject: no such customer"
    request = next(request for request in broker.seen(310) if request.text("b") == "%RETRY%G")
    assert (request.text("j"), request.text("l")) == (
        "17",
        "16",
    )  # more than the bound: any broker gives it up


async def test_message_from_the_retry_topic_shows_its_own_topic(broker):
    broker.topics["%RETRY%G"] = 1
    broker.store("%RETRY%G", 0, b"again", "RETRY_TOPIC\x01orders\x02UNIQ_KEY\x01U\x02", reconsume_times=1)
    seen = []
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=seen.append, config=FIRST
    ):
        await wait_until(lambda: seen)
    assert seen[0].topic == "orders"
    assert seen[0].queue.topic == "%RETRY%G"
    assert seen[0].reconsume_times == 1


async def test_tags_are_compared_as_text_again(broker):
    async with Producer(broker.address, "PG") as producer:
        queue = (await producer.queues("orders"))[0]
        for tag in (
            "Aa",
            "BB",
            "Aa",
        ):  # Java's hash of Aa and BB is the same, so the broker lets both through
            await producer.send(Message("orders", tag.encode(), tag=tag), queue=queue)
    seen = []
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "Aa"}, handler=seen.append, config=FIRST
    ):
        await wait_until(lambda: len(seen) == 2)
    assert [message.body for message in seen] == [b"Aa", b"Aa"]
    assert broker.offsets["G", "orders", 0] == 3


async def test_unfinished_message_holds_back_the_committed_offset(broker):
    async with Producer(broker.address, "PG") as producer:
        queue = (await producer.queues("orders"))[0]
        for n in range(5):
            await producer.send(Message("orders", b"%d" % n), queue=queue)
    release = asyncio.Event()
    done = []

    async def handle(message):
        if message.queue_offset == 2:
            await release.wait()
        done.append(message.queue_offset)

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, drain_s=0.05)
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=config
    ):
        await wait_until(lambda: len(done) == 4)
    assert broker.offsets["G", "orders", 0] == 2


async def test_async_for_acknowledges_with_the_next_step(broker):
    async with Producer(broker.address, "PG") as producer:
        queue = (await producer.queues("orders"))[0]
        for n in range(5):
            await producer.send(Message("orders", b"%d" % n), queue=queue)
    seen = []
    async with PushConsumer(broker.address, "G", subscriptions={"orders": "*"}, config=FIRST) as consumer:
        async with asyncio.timeout(60):
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 4:
                    break
    assert seen == [b"0", b"1", b"2", b"3"]
    assert broker.offsets["G", "orders", 0] == 3  # the one at which the loop was left is not acknowledged


async def test_ack_by_hand_counts_at_once(broker):
    await fill(broker, 1)
    async with PushConsumer(broker.address, "G", subscriptions={"orders": "*"}, config=FIRST) as consumer:
        async with asyncio.timeout(60):
            async for message in consumer:
                message.ack()
                break
    assert 1 in [broker.offsets["G", "orders", n] for n in range(4)]


async def test_retry_by_hand_sends_back(broker):
    await fill(broker, 1)
    async with PushConsumer(broker.address, "G", subscriptions={"orders": "*"}, config=FIRST) as consumer:
        async with asyncio.timeout(60):
            async for message in consumer:
                message.retry(delay_level=5)
                break
        await wait_until(lambda: broker.sent_back)
    assert broker.sent_back[0]["delayLevel"] == "5"


async def test_second_member_takes_its_share_at_once_and_gives_it_back(broker):
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=print, config=FIRST
    ) as first:
        await wait_until(lambda: len([q for q in first.owned if q.topic == "orders"]) == 4)
        async with PushConsumer(
            broker.address, "G", subscriptions={"orders": "*"}, handler=print, config=FIRST
        ) as second:
            await wait_until(
                lambda: (
                    sorted(len([q for q in c.owned if q.topic == "orders"]) for c in (first, second))
                    == [2, 2]
                )
            )
            assert not first.owned & second.owned
        await wait_until(lambda: len([q for q in first.owned if q.topic == "orders"]) == 4)


async def test_broadcasting_keeps_offsets_in_a_file_and_owns_all_queues(broker, tmp_path):
    await fill(broker, 8)
    config = ConsumerConfig(
        model=MessageModel.BROADCASTING,
        consume_from=ConsumeFrom.FIRST,
        local_offsets_directory=str(tmp_path),
    )
    seen = []
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=seen.append, config=config
    ) as consumer:
        await wait_until(lambda: len(seen) == 8)
        assert len(consumer.owned) == 4
    text = (tmp_path / "127.0.0.1@DEFAULT" / "G" / "offsets.json").read_text()
    assert '{"brokerName":"broker-a","queueId":0,"topic":"orders"}:2' in text
    assert not broker.seen(15)
    assert not broker.seen(38)


async def test_a_broadcast_member_resumes_at_its_last_offset(broker, tmp_path):
    await fill(broker, 8)
    config = ConsumerConfig(
        model=MessageModel.BROADCASTING,
        consume_from=ConsumeFrom.FIRST,
        local_offsets_directory=str(tmp_path),
    )
    runs = []
    for _ in range(2):
        seen = []
        runs.append(seen)
        async with PushConsumer(
            broker.address, "G", subscriptions={"orders": "*"}, handler=seen.append, config=config
        ):
            await wait_until(lambda seen=seen: len(seen) == 8)
        await fill(broker, 8)
    assert len(runs[1]) == 8
    assert {message.queue_offset for message in runs[1]} == {2, 3}


async def test_two_broadcast_members_of_a_host_have_separate_offsets(broker, tmp_path):
    await fill(broker, 8)
    config = ConsumerConfig(
        model=MessageModel.BROADCASTING,
        consume_from=ConsumeFrom.FIRST,
        local_offsets_directory=str(tmp_path),
    )
    first, second = [], []
    async with (
        PushConsumer(broker.address, "G", subscriptions={"orders": "*"}, handler=first.append, config=config),
        PushConsumer(
            broker.address, "G", subscriptions={"orders": "*"}, handler=second.append, config=config
        ),
    ):
        await wait_until(lambda: len(first) == len(second) == 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["127.0.0.1@DEFAULT", "127.0.0.1@DEFAULT-2"]


async def test_an_ordered_broadcast_member_needs_no_lock_and_passes_what_it_gives_up(broker, tmp_path):
    await fill(broker, 8)
    config = ConsumerConfig(
        model=MessageModel.BROADCASTING,
        consume_from=ConsumeFrom.FIRST,
        local_offsets_directory=str(tmp_path),
        orderly=True,
        retry_count_max=1,
        suspend_s=0.01,
    )
    seen = []

    def handle(message):
        seen.append((message.queue.queue_id, message.queue_offset))
        if message.body == b"0":
            raise ValueError("never")

    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=config
    ):
        await wait_until(lambda: len(seen) == 9)
    for queue in range(4):
        offsets = [offset for each, offset in seen if each == queue]
        assert offsets in ([0, 1], [0, 0, 1])
    assert not broker.seen(41)
    assert not broker.sent_back


async def test_offset_beyond_the_end_is_corrected(broker):
    broker.offsets["G", "orders", 0] = 99
    seen = []
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=seen.append, config=FIRST
    ):
        await wait_until(lambda: broker.offsets["G", "orders", 0] == 0)
        await wait_until(lambda: len(broker.parked) == 5)
        assert seen == []
        await fill(broker, 4)
        await wait_until(lambda: len(seen) == 4)
    assert sorted(message.body for message in seen) == [b"0", b"1", b"2", b"3"]


async def test_full_cache_stops_pulling_until_there_is_room(broker):
    async with Producer(broker.address, "PG") as producer:
        queue = (await producer.queues("orders"))[0]
        await producer.send_batch([Message("orders", b"%d" % n) for n in range(100)], queue=queue)
    gate = asyncio.Event()
    done = 0

    async def handle(_message):
        nonlocal done
        await gate.wait()
        done += 1

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, cached_count_max=10, pull_batch_count=8)
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=config
    ) as consumer:
        pulls = consumer._pulls
        await wait_until(lambda: queue in pulls and pulls[queue].process.count == 16)
        for _ in range(20):
            await asyncio.sleep(0)
        assert pulls[queue].process.count == 16
        gate.set()
        await wait_until(lambda: done == 100)


async def test_start_without_a_nameserver_fails_and_leaks_nothing():
    tasks = asyncio.all_tasks()
    with pytest.raises(ConnectFailed):
        await PushConsumer("127.0.0.1:1", "G", subscriptions={"orders": "*"}, handler=print).start()
    assert asyncio.all_tasks() == tasks


async def test_close_ends_every_task(broker):
    tasks = asyncio.all_tasks()
    async with PushConsumer(broker.address, "G", subscriptions={"orders": "*"}, handler=print, config=FIRST):
        await wait_until(lambda: len(broker.parked) == 5)
        connections = list(broker.server.connections)
    assert len(connections) == 1
    await wait_until(lambda: asyncio.all_tasks() == tasks)


def test_wrong_expressions_and_names_are_refused():
    for topic, expression in (("bad topic", "*"), ("orders", "a || ")):
        with pytest.raises(UsageError):
            PushConsumer("127.0.0.1:1", "G", subscriptions={topic: expression}, handler=print)
    with pytest.raises(UsageError):
        PushConsumer("127.0.0.1:1", "bad group", subscriptions={"orders": "*"}, handler=print)
    with pytest.raises(UsageError):
        PushConsumer("127.0.0.1:1", "G", subscriptions={}, handler=print)


@pytest.mark.parametrize("orderly", [False, True])
async def test_plain_function_that_blocks_holds_up_nothing_else(broker, orderly):
    """Were it run in the event loop, the second handler could never set what the first one waits for."""
    await fill(broker, 4)
    both, names = threading.Barrier(2), set()

    def handle(_message):
        names.add(threading.current_thread().name)
        both.wait(120)

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, concurrency=2, orderly=orderly)
    if orderly:
        broker.code_41 = lambda connection, request: request.reply(
            body=orjson.dumps({"lockOKMQSet": orjson.loads(request.body)["mqSet"]})
        )
        broker.code_42 = lambda connection, request: None
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=config
    ) as consumer:
        await wait_until(lambda: consumer.consumed_count == 4)
    assert names == {"aerobee-G-1", "aerobee-G-2"}


async def test_a_topic_created_after_its_consumers_is_read_in_a_second(broker):
    seen = []
    client = ClientConfig(route_refresh_s=3600.0)
    config = ConsumerConfig(rebalance_s=3600.0)
    async with PushConsumer(
        broker.address, "G", ["invoices"], seen.append, config=config, client=client
    ) as consumer:
        broker.topics["invoices"] = 2
        await wait_until(lambda: len(consumer.owned) == 3)  # the retry topic's queue too
        async with Producer(broker.address, "PG") as producer:
            await producer.send(Message("invoices", b"first"))
        await wait_until(lambda: len(seen) == 1)
    assert seen[0].body == b"first"


async def test_what_is_stored_before_a_missing_topic_is_found_is_read(broker):
    seen = []
    client = ClientConfig(route_refresh_s=3600.0)
    async with PushConsumer(broker.address, "G", ["invoices"], seen.append, client=client):
        broker.topics["invoices"] = 2
        async with Producer(broker.address, "PG") as producer:
            await producer.send(Message("invoices", b"first"))
        await wait_until(lambda: len(seen) == 1)
    assert seen[0].body == b"first"


async def test_only_missing_topics_are_requested_every_second(broker):
    client = ClientConfig(route_refresh_s=3600.0)
    async with PushConsumer(broker.address, "G", ["orders", "invoices"], print, client=client):
        before = len(broker.seen(105))
        await wait_until(lambda: len(broker.seen(105)) >= before + 3)
        assert "orders" not in {request.text("topic") for request in broker.seen(105)[before:]}
