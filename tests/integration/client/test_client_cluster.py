"""Client and cluster together: pull consumer, admin, synchronous facade, faults of brokers and nameservers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aerobee import Message, MessageQueue
from aerobee.client import (
    Admin,
    Compression,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    SendStatus,
    Sql,
    SyncAdmin,
    SyncProducer,
    SyncPullConsumer,
)
from aerobee.errors import (
    AerobeeError,
    ConsumerNotOnline,
    MessageIllegal,
    QueryNotFound,
    RemoteError,
    RouteError,
    TopicNotExist,
    UsageError,
)
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.client.draining import drain
from tests.waiting import wait_until

FIRST = PullConsumerConfig(consume_from=ConsumeFrom.FIRST, pull_hold_s=1.0)


@pytest.fixture
async def cluster():
    async with LocalCluster() as running:
        await running.create_topic("orders", queues=2)
        yield running


async def fill(cluster, count, topic="orders", **fields):
    async with Producer(cluster.nameserver_address, "PG") as producer:
        return [await producer.send(Message(topic, b"%d" % n, **fields)) for n in range(count)]


async def test_message_group_orders_and_keys_search(cluster):
    """Equal keys do not choose a queue, equal groups do; the index finds keys, not groups."""
    async with Producer(cluster.nameserver_address, "PG") as producer:
        grouped = [
            await producer.send(Message("orders", b"g%d" % n, keys=(f"key-{n}",)), message_group="ann")
            for n in range(6)
        ]
        keyed = [await producer.send(Message("orders", b"k%d" % n, keys=("ann",))) for n in range(4)]
        former: dict[str, Any] = {"key": "ann"}
        with pytest.raises(TypeError, match="unexpected keyword argument 'key'"):
            await producer.send(Message("orders", b"x"), **former)
    assert len({result.queue for result in grouped}) == 1
    assert sorted(result.queue_offset for result in grouped) == [result.queue_offset for result in grouped]
    assert len({result.queue for result in keyed}) == 2
    async with Admin(cluster.nameserver_address) as admin:
        found = await admin.messages_by_key("orders", "ann")
        assert [message.body for message in found] == [b"k0", b"k1", b"k2", b"k3"]
        assert [each.body for each in await admin.messages_by_key("orders", "key-3")] == [b"g3"]


class TestPullConsumer:
    async def test_assigned_queues_are_read_in_order(self, cluster):
        await fill(cluster, 10)
        async with PullConsumer(cluster.nameserver_address, "G", config=FIRST) as consumer:
            await consumer.assign(await consumer.queues("orders"))
            messages = await drain(consumer, 10)
            for queue in consumer.assigned:
                assert [m.queue_offset for m in messages if m.queue == queue] == [0, 1, 2, 3, 4]
                assert consumer.position(queue) == 5
                assert await consumer.committed(queue) is None or await consumer.committed(queue) <= 5
            await consumer.commit()
            assert [await consumer.committed(queue) for queue in consumer.assigned] == [5, 5]

    async def test_the_next_start_resumes_where_the_last_one_ended(self, cluster):
        await fill(cluster, 4)
        for expected in (4, 2):
            async with PullConsumer(cluster.nameserver_address, "G", config=FIRST) as consumer:
                await consumer.subscribe("orders")
                assert len(await drain(consumer, expected)) == expected
            await fill(cluster, 2)

    async def test_seeks(self, cluster):
        results = await fill(cluster, 10)
        queue = results[0].queue
        async with PullConsumer(cluster.nameserver_address, "G", config=FIRST) as consumer:
            await consumer.assign([queue])
            await drain(consumer, 5)
            await consumer.seek(queue, 3)
            assert [m.queue_offset for m in await drain(consumer, 2)] == [3, 4]
            await consumer.seek_to_begin(queue)
            stored = await drain(consumer, 5)
            await consumer.seek_to_time(queue, stored[0].store_timestamp - 1)
            assert len(await drain(consumer, 5)) == 5
            await consumer.seek_to_end(queue)
            assert consumer.position(queue) == 5
            assert await consumer.poll(0.05) == []
            assert await consumer.end_offset(queue) == 5
            assert await consumer.begin_offset(queue) == 0
            with pytest.raises(UsageError, match="not read by this consumer"):
                await consumer.seek(MessageQueue("orders", "other", 0), 1)

    async def test_paused_queue_is_silent_until_it_is_resumed(self, cluster):
        results = await fill(cluster, 2)
        queue = results[0].queue
        async with PullConsumer(cluster.nameserver_address, "G", config=FIRST) as consumer:
            await consumer.assign([queue])
            consumer.pause(queue)
            assert await consumer.poll(0.1) == []
            consumer.resume(queue)
            assert len(await drain(consumer, 1)) == 1

    async def test_waiting_poll_is_woken_by_a_message(self, cluster):
        async with PullConsumer(cluster.nameserver_address, "G", config=FIRST) as consumer:
            await consumer.assign(await consumer.queues("orders"))
            polling = asyncio.create_task(consumer.poll(5.0))
            await fill(cluster, 1)
            assert len(await polling) == 1

    async def test_two_members_share_the_queues(self, cluster):
        async with (
            PullConsumer(cluster.nameserver_address, "G", config=FIRST) as first,
            PullConsumer(cluster.nameserver_address, "G", config=FIRST) as second,
        ):
            await first.subscribe("orders")
            await second.subscribe("orders")
            async with asyncio.timeout(60):
                while not len(first.assigned) == len(second.assigned) == 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not first.assigned & second.assigned

    async def test_tags_of_a_subscription(self, cluster):
        await fill(cluster, 4, tag="a")
        await fill(cluster, 4, tag="b")
        async with PullConsumer(cluster.nameserver_address, "G", config=FIRST) as consumer:
            await consumer.subscribe("orders", "b")
            assert {message.tag for message in await drain(consumer, 4)} == {"b"}

    async def test_missing_topic_is_an_error(self, cluster):
        async with PullConsumer(cluster.nameserver_address, "G") as consumer:
            with pytest.raises(TopicNotExist):
                await consumer.subscribe("nowhere")


class TestAdmin:
    async def test_topics(self, cluster):
        async with Admin(cluster.nameserver_address) as admin:
            assert await admin.create_topic("fresh", queue_count=3) == cluster.broker_addresses
            async with asyncio.timeout(60):
                while not await admin.topic_exists("fresh"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert "fresh" in await admin.topics()
            (config,) = await admin.topic_config("fresh")
            assert (config.read_queue_count, config.write_queue_count, config.perm) == (3, 3, 6)
            await fill(cluster, 3, "fresh")
            assert sum(queue.max_offset for queue in await admin.topic_stats("fresh")) == 3
            await admin.delete_topic("fresh")
            with pytest.raises(TopicNotExist):
                await admin.topic_stats("fresh")
            with pytest.raises(UsageError, match="known clusters: DefaultCluster"):
                await admin.create_topic("fresh", cluster="elsewhere")

    async def test_messages_by_every_kind_of_id(self, cluster):
        results = await fill(cluster, 3, keys=("k1",))
        async with Admin(cluster.nameserver_address) as admin:
            for result in results:
                for message in (
                    await admin.message(result.offset_message_id),
                    await admin.message(result.message_id, "orders"),
                    await admin.message_at(result.queue, result.queue_offset),
                ):
                    assert message.message_id == result.message_id
                    assert message.queue_offset == result.queue_offset
            assert len(await admin.messages_by_key("orders", "k1")) == 3
            assert await admin.messages_by_key("orders", "other") == ()
            with pytest.raises(QueryNotFound, match="no message at offset 99"):
                await admin.message_at(results[0].queue, 99)
            with pytest.raises(QueryNotFound, match="has the id"):
                await admin.message("7F00000128D528F22849679CBE32465E", "orders")
            with pytest.raises(UsageError, match="name its topic"):
                await admin.message("7F00000128D528F22849679CBE32465E")

    async def test_groups_progress_and_reset(self, cluster):
        await fill(cluster, 6)
        seen = []
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.02)
        async with Admin(cluster.nameserver_address) as admin:
            async with PushConsumer(
                cluster.nameserver_address,
                "G",
                subscriptions={"orders": "*"},
                handler=seen.append,
                config=config,
            ) as consumer:
                async with asyncio.timeout(60):
                    while (await admin.consumer_progress("G", "orders")).lag or len(seen) < 6:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                progress = await admin.consumer_progress("G", "orders")
                assert {queue.client_id for queue in progress.queues} == {consumer.client_id}
                connections = await admin.consumer_connections("G")
                assert [item.client_id for item in connections.connections] == [consumer.client_id]
                assert {item.topic for item in connections.subscriptions} == {"orders", "%RETRY%G"}
                info = await admin.running_info("G", consumer.client_id)
                assert len(info.mq_table) == 3
                assert await admin.topic_groups("orders") == ("G",)
                stored = (await fill(cluster, 1))[0]
                direct = await admin.consume_directly(
                    "G", consumer.client_id, "orders", stored.offset_message_id
                )
                assert direct.result == "CR_SUCCESS"
            with pytest.raises(ConsumerNotOnline):
                await admin.consumer_connections("G")
            reset = await admin.reset_offsets("G", "orders", timestamp_ms=0)
            assert set(reset.values()) == {0}
            assert any(group.name == "G" for group in await admin.groups())

    async def test_brokers_config_and_kv(self, cluster):
        async with Admin(cluster.nameserver_address) as admin:
            (broker,) = await admin.brokers()
            assert broker.address == cluster.broker_addresses[0]
            assert (await admin.broker_runtime(broker.address))["brokerVersionDesc"]
            assert (await admin.broker_config(broker.address))["brokerName"] == broker.broker_name
            await admin.kv_put("NS", "key", "value")
            assert await admin.kv_get("NS", "key") == "value"
            assert await admin.kv_list("NS") == {"key": "value"}
            await admin.kv_delete("NS", "key")
            with pytest.raises(QueryNotFound):
                await admin.kv_get("NS", "key")
            assert await admin.wipe_write_perm(broker.broker_name) > 0
            async with Producer(cluster.nameserver_address, "PG") as producer:
                with pytest.raises(RouteError, match="write"):
                    await producer.send(Message("orders", b"x"))
                await admin.add_write_perm(broker.broker_name)
                result = await producer.send(Message("orders", b"x"))
            assert result.status is SendStatus.SEND_OK


async def test_a_producer_continues_at_the_other_broker():
    async with LocalCluster(brokers=2) as cluster:
        await cluster.create_topic("orders", queues=2)
        async with Producer(cluster.nameserver_address, "PG") as producer:
            await producer.send(Message("orders", b"x"))
            await cluster.stop_broker(0)
            results = [await producer.send(Message("orders", b"x")) for _ in range(6)]
    assert {result.queue.broker_name for result in results} == {cluster.broker_names[1]}


async def test_consumer_and_producer_live_on_while_one_nameserver_is_left():
    async with LocalCluster(nameservers=3) as cluster:
        await cluster.create_topic("orders", queues=2)
        await cluster.stop_nameserver(0)
        await cluster.stop_nameserver(1)
        await fill(cluster, 4)
        async with PullConsumer(cluster.nameserver_address, "G", config=FIRST) as consumer:
            await consumer.subscribe("orders")
            assert len(await drain(consumer, 4)) == 4


async def test_consumer_finds_its_way_back_to_a_broker_that_restarts(cluster):
    seen = []
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, pull_pause_after_error_s=0.02)
    async with PushConsumer(
        cluster.nameserver_address, "G", subscriptions={"orders": "*"}, handler=seen.append, config=config
    ):
        sent = await fill(cluster, 2)
        await wait_until(lambda: len(seen) >= 2, "two messages")
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        sent += await fill(cluster, 2)
        await wait_until(
            lambda: len({m.offset_message_id for m in seen}) >= 4, "those sent after the restart"
        )
    assert {m.offset_message_id for m in seen} == {each.offset_message_id for each in sent}


async def test_synchronous_facade(cluster):
    def script(addresses):
        with SyncProducer(addresses) as producer:
            result = producer.send(Message("orders", b"hello"), message_group="k")
            results = producer.send_batch([Message("orders", b"a"), Message("orders", b"b")])
        with SyncPullConsumer(addresses, "G", config=FIRST) as consumer:
            consumer.subscribe("orders")
            messages = []
            while len(messages) < 3:
                messages += consumer.poll(1.0)
            consumer.commit()
        with SyncAdmin(addresses) as admin:
            topics = admin.topics()
        with pytest.raises(UsageError, match="inside `with`"):
            producer.send(Message("orders", b"late"))
        return result, results, messages, topics

    result, results, messages, topics = await asyncio.to_thread(script, cluster.nameserver_address)
    assert result.status is SendStatus.SEND_OK
    assert len(results) == 2
    assert {message.body for message in messages} == {b"hello", b"a", b"b"}
    assert "orders" in topics
    with pytest.raises(UsageError, match="event loop runs"), SyncProducer(cluster.nameserver_address):
        pass


async def test_failing_message_comes_again_and_ends_with_the_dead_letters(cluster):
    tries = []

    def handle(message):
        tries.append((message.topic, message.reconsume_times, message.body))
        raise ValueError("always")

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, retry_count_max=2)
    async with cluster.push_consumer("G", {"orders": "*"}, handle, config=config):
        await fill(cluster, 1)
        await wait_until(lambda: len(tries) == 1)
        for count in (2, 3):
            for _ in range(8):
                await cluster.advance_clock(5)
            await wait_until(lambda count=count: len(tries) >= count)
        async with Admin(cluster.nameserver_address) as admin:

            async def dead_letters():
                try:
                    return await admin.topic_stats("%DLQ%G")
                except TopicNotExist:
                    return ()

            async with asyncio.timeout(60):
                while not sum(queue.max_offset for queue in await dead_letters()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            (queue,) = await dead_letters()
            dead = await admin.message_at(queue.queue, 0)
    assert tries == [("orders", 0, b"0"), ("orders", 1, b"0"), ("orders", 2, b"0")]
    assert dead.body == b"0"
    assert dead.properties["RETRY_TOPIC"] == "orders"


async def test_broker_that_dies_costs_a_send_a_retry_and_no_message():
    async with LocalCluster(brokers=2) as cluster:
        await cluster.create_topic("orders", queues=2)
        async with Producer(cluster.nameserver_address, "PG") as producer:
            sending = [asyncio.create_task(producer.send(Message("orders", b"%d" % n))) for n in range(200)]
            await asyncio.sleep(0)
            await cluster.kill_broker(0)
            results = await asyncio.gather(*sending)
    assert len(results) == 200


async def test_sql_expression_that_does_not_parse_is_refused_at_the_start():
    async with LocalCluster(broker_config={"enable_property_filter": True}) as cluster:
        await cluster.create_topic("orders", queues=2)
        with pytest.raises(RemoteError):
            await cluster.push_consumer("G", {"orders": "sql: a >"}, print).start()


async def test_a_pull_consumers_sql_expression_is_checked_and_filters():
    async with LocalCluster(broker_config={"enable_property_filter": True}) as cluster:
        await cluster.create_topic("orders", queues=1)
        for size in range(6):
            await fill(cluster, 1, properties={"size": str(size)})
        async with cluster.pull_consumer("G", config=FIRST) as consumer:
            with pytest.raises(RemoteError, match="column 4"):
                await consumer.subscribe("orders", Sql("a >"))
            await consumer.subscribe("orders", Sql("size BETWEEN 2 AND 3"))
            seen = [message.properties["size"] for message in await drain(consumer, 2)]
        assert seen == ["2", "3"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_push_consumer_commits_behind_messages_that_it_does_not_want(cluster, orderly):
    await fill(cluster, 6, tag="B")
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=orderly, persist_offsets_s=0.05)
    seen = []

    async def all_committed():
        return await committed(admin, "G") == 6

    async with (
        cluster.push_consumer("G", {"orders": "A"}, seen.append, config=config),
        Admin(cluster.nameserver_address) as admin,
    ):
        await wait_until(all_committed, "offsets behind all messages")
    assert seen == []


async def test_a_pull_consumer_commits_behind_messages_that_it_does_not_want(cluster):
    await fill(cluster, 6, tag="B")
    async with (
        cluster.pull_consumer("G", config=replace(FIRST, auto_commit=False)) as consumer,
        Admin(cluster.nameserver_address) as admin,
    ):
        await consumer.subscribe("orders", "A")
        async with asyncio.timeout(60):
            while await committed(admin, "G") != 6:
                assert await consumer.poll(0.05) == []
                await consumer.commit()


async def test_a_pull_consumer_commits_where_the_broker_moved_it(cluster):
    await fill(cluster, 1)
    async with cluster.pull_consumer("G", config=replace(FIRST, auto_commit=False)) as consumer:
        queues = await consumer.queues("orders")
        await consumer.assign(queues)
        assert len(await drain(consumer, 1)) == 1
        # A peer cannot commit behind the end; a broker that lost the end of its log has such offsets.
        for queue in queues:
            cluster.broker().offsets.commit("G", "orders", queue.queue_id, 99)
        await consumer.assign(())
        await consumer.assign(queues)
        ends = {queue: await consumer.end_offset(queue) for queue in queues}
        async with asyncio.timeout(60):
            while {queue: await consumer.committed(queue) for queue in queues} != ends:
                await consumer.poll(0.05)
                await consumer.commit()


async def committed(admin, group):
    """The sum of a group's offsets in `orders`."""
    progress = await admin.consumer_progress(group, "orders")
    return sum(max(each.consumer_offset, 0) for each in progress.queues)


async def test_sql_expression_filters_at_the_broker():
    async with LocalCluster(broker_config={"enable_property_filter": True}) as cluster:
        await cluster.create_topic("orders", queues=2)
        seen = []
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with cluster.push_consumer("G", {"orders": "sql: size > 3"}, seen.append, config=config):
            for size in range(6):
                await fill(cluster, 1, properties={"size": str(size)})
            await wait_until(lambda: len(seen) == 2)
        assert sorted(message.properties["size"] for message in seen) == ["4", "5"]


async def test_allocation_of_ones_own_that_fails_is_tried_again(cluster):
    calls = []

    def allocate(own_id, queues, ids):
        calls.append(own_id)
        if len(calls) == 1:
            raise ValueError("first time")
        return queues

    async with PushConsumer(
        cluster.nameserver_address,
        "G",
        subscriptions={"orders": "*"},
        handler=print,
        allocation=allocate,
    ) as consumer:
        await wait_until(lambda: len(consumer.owned) == 3)


async def test_several_tasks_read_one_consumer(cluster):
    await fill(cluster, 30)
    seen = []
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with cluster.push_consumer("G", {"orders": "*"}, config=config) as consumer:

        async def read():
            async for message in consumer:
                seen.append(message.body)
                await asyncio.sleep(0)

        readers = [asyncio.create_task(read()) for _ in range(3)]
        await wait_until(lambda: len(seen) == 30)
    await asyncio.gather(*readers)
    assert len(set(seen)) == 30


async def test_two_polls_at_a_time_both_end(cluster):
    async with PullConsumer(cluster.nameserver_address, "G", config=FIRST) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        polls = [asyncio.create_task(consumer.poll(0.3)) for _ in range(2)]
        await fill(cluster, 1)
        assert sorted(map(len, await asyncio.gather(*polls))) == [0, 1]


async def test_deleted_topic_is_created_anew_by_the_next_send(cluster):
    async with cluster.producer() as producer, Admin(cluster.nameserver_address) as admin:
        await producer.send(Message("orders", b"x"))
        await admin.delete_topic("orders")
        result = await producer.send(Message("orders", b"y"))
        assert result.status is SendStatus.SEND_OK
        assert result.queue_offset == 0


async def test_broker_that_is_gone_for_good_is_named_with_what_was_wrong(cluster):
    async with cluster.producer() as producer:
        await producer.send(Message("orders", b"x"))
        await cluster.kill_broker(0)
        with pytest.raises(AerobeeError, match=r"orders.*no broker runs"):
            await producer.send(Message("orders", b"x"))


async def test_message_beyond_the_frame_limit_is_refused_here(cluster):
    config = ProducerConfig(body_bytes_max=100 << 20, compression=Compression.NONE)
    async with cluster.producer(config=config) as producer:
        with pytest.raises(UsageError, match="frames of at most 16777216"):
            await producer.send(Message("orders", bytes(17 << 20)))
        with pytest.raises(MessageIllegal, match="maxMessageSize"):
            await producer.send(Message("orders", bytes(5 << 20)))
