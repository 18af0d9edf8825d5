"""A setting that is changed while the broker runs is in force when the answer comes, or the answer says that it is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from aerobee.client import Admin, ConsumeFrom, ConsumerConfig, Producer, PullConsumer, PullConsumerConfig, Sql
from aerobee.errors import RemoteError
from aerobee.message import Message
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.testing import LocalCluster

TOPIC = "Orders"
FROM_FIRST = PullConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


async def change(cluster: LocalCluster, **values: object) -> RemotingCommand:
    client = RemotingClient(clock=cluster.clock, network=AsyncioNetwork())
    try:
        text = "".join(f"{key}={str(value).lower()}\n" for key, value in values.items())
        return await client.invoke(cluster.broker().address, RemotingCommand(25, body=text.encode()))
    finally:
        await client.close()


async def test_how_long_requests_may_wait(cluster: LocalCluster) -> None:
    overload = cluster.broker().overload
    overload.stop()  # this test measures alone
    for limit, waits, refused in ((500, 600, True), (5_000, 600, False), (5_000, 6_000, True)):
        assert (await change(cluster, waitTimeMillsInSendQueue=limit)).remark is None
        assert overload.reason == "", "what the limit before refused is measured again"
        overload.observe(waits, 0)
        overload.observe(waits, 0)
        assert bool(overload.reason) is refused
    assert (await change(cluster, brokerFastFailureEnable=False)).remark is None
    overload.observe(60_000, 0)
    overload.observe(60_000, 0)
    assert overload.reason == ""
    await change(cluster, brokerFastFailureEnable=True)
    overload.observe(6_000, 0)
    overload.observe(6_000, 0)
    assert "5000 ms" in overload.reason


async def test_how_many_unread_bytes_are_held(cluster: LocalCluster) -> None:
    overload = cluster.broker().overload
    overload.stop()
    for limit, refused in ((1_000, True), (1_000_000, False)):
        assert (await change(cluster, pendingReplyBytesMax=limit)).remark is None
        overload.observe(0, 2_000)
        assert bool(overload.reason) is refused
        assert cluster.broker()._serving.unread.limit_bytes == limit


async def test_pulls_of_those_that_are_no_members(cluster: LocalCluster) -> None:
    async with Producer(cluster.nameserver_address, clock=cluster.clock) as producer:
        sent = await producer.send(Message(TOPIC, b"one"))
    client = RemotingClient(clock=cluster.clock, network=AsyncioNetwork())
    pull = RemotingCommand(
        11,
        {
            "consumerGroup": "unknown", "topic": TOPIC, "queueId": str(sent.queue.queue_id), "queueOffset": "0",
            "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
            "subscription": "*",
        },
    )  # fmt: skip
    address = cluster.broker().address
    assert (await client.invoke(address, pull)).code == 0
    assert (await change(cluster, rejectPullConsumerEnable=True)).remark is None
    refused = await client.invoke(address, pull)
    assert (refused.code, "rejectPullConsumerEnable" in (refused.remark or "")) == (24, True)
    async with PullConsumer(
        cluster.nameserver_address, "members", config=FROM_FIRST, clock=cluster.clock
    ) as consumer:
        await consumer.subscribe(TOPIC)
        got: list[bytes] = []
        async with asyncio.timeout(120):
            while not got:
                got += [message.body for message in await consumer.poll(1)]
    assert got == [b"one"], "a member of the group may pull"
    await change(cluster, rejectPullConsumerEnable=False)
    assert (await client.invoke(address, pull)).code == 0
    await client.close()


async def test_what_is_built_in_at_the_start_is_said_to_be(cluster: LocalCluster) -> None:
    reply = await change(cluster, enablePopBufferMerge=True, lockInStrictMode=True, traceOn=False)
    assert reply.code == 0
    assert reply.remark == (
        "not changed, needs the configuration file and a restart: enablePopBufferMerge; "
        "ignored, this broker has no such settings: lockInStrictMode"
    )


async def test_a_change_that_changes_nothing_is_an_error(cluster: LocalCluster) -> None:
    for settings in ({"enablePopBufferMerge": True}, {"lockInStrictMode": True}, {}):
        reply = await change(cluster, **settings)
        assert reply.code == 29
        assert (reply.remark or "").startswith("nothing was changed: ")


async def test_recalls_while_the_broker_takes_no_messages() -> None:
    async with (
        LocalCluster(broker_config={"recall_message_enable": True}) as cluster,
        Producer(cluster.nameserver_address, clock=cluster.clock) as producer,
        Admin(cluster.nameserver_address, clock=cluster.clock) as admin,
    ):
        sent = await producer.send(Message(TOPIC, b"later", deliver_after=60))
        address = cluster.broker().address
        await admin.update_broker_config(
            address, {"brokerPermission": "4", "allowRecallWhenBrokerNotWriteable": "false"}
        )
        with pytest.raises(RemoteError, match="allowRecallWhenBrokerNotWriteable"):
            await producer.recall(TOPIC, sent.recall_handle)
        await admin.update_broker_config(address, {"allowRecallWhenBrokerNotWriteable": "true"})
        assert await producer.recall(TOPIC, sent.recall_handle) == sent.message_id


async def test_a_topic_is_told_alone_or_by_a_registration(cluster: LocalCluster) -> None:
    """`enableSingleTopicRegister`: 217 in place of 103, and the next whole registration is taken in."""
    table, broker = cluster.nameserver().table, cluster.broker()
    handlers = cluster.nameserver().handlers
    seen: list[int] = []
    for code in (103, 217):

        def note(peer, request, code=code, handler=handlers[code]):
            seen.append(code)
            return handler(peer, request)

        handlers[code] = note
    for number, (single, code) in enumerate((("true", 217), ("false", 103), ("true", 217))):
        assert (await change(cluster, enableSingleTopicRegister=single)).code == 0
        await broker.registration.settled()
        seen.clear()
        await cluster.create_topic(f"T{number}", queues=number + 1)
        assert seen == [code]
        assert table.topics[f"T{number}"][broker.identity.name].read_queue_count == number + 1
    await cluster.create_topic("T0", queues=5)
    broker.registration.register_all()
    await broker.registration.settled()
    assert table.topics["T0"][broker.identity.name].read_queue_count == 5


async def test_lag_is_estimated_through_the_filter_of_a_group(cluster: LocalCluster) -> None:
    """`estimateAccumulation`: tags and SQL92, whole and from a sample, on and off."""
    await change(cluster, enablePropertyFilter="true")
    await cluster.create_topic(TOPIC, queues=1)
    gate = asyncio.Event()

    async def wait(message) -> None:
        await gate.wait()

    async with Producer(cluster.nameserver_address) as producer, Admin(cluster.nameserver_address) as admin:
        for count in (40, 1_500):
            await asyncio.gather(
                *(
                    producer.send(
                        Message(
                            TOPIC, b"x", tag="odd" if n % 4 == 1 else "even", properties={"n": str(n % 4)}
                        )
                    )
                    for n in range(count)
                )
            )
            for group, expression in (("Tags", "odd"), ("Sql", Sql("n = 1")), ("All", "*")):
                config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
                async with cluster.push_consumer(f"{group}{count}", {TOPIC: expression}, wait, config=config):
                    total = cluster.broker().store.max_offset(TOPIC, 0)
                    (queue,) = (await admin.consumer_progress(f"{group}{count}", TOPIC)).queues
                    assert queue.lag >= total - 1  # the first one, which no filter takes, may be committed
                    if group == "All":
                        assert queue.wanted is None
                    else:
                        assert queue.wanted is not None
                        assert abs(queue.wanted - total / 4) <= (0 if count == 40 else 3 * total / 100)
                    await change(cluster, estimateAccumulation="false")
                    (queue,) = (await admin.consumer_progress(f"{group}{count}", TOPIC)).queues
                    assert queue.wanted is None
                    await change(cluster, estimateAccumulation="true")
        gate.set()


async def test_a_secret_is_refused_and_no_value_is_logged(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    before = cluster.broker().store.config.max_message_size
    reply = await change(cluster, haSharedKey="anothersecretofmine1", maxMessageSize=4_000_001)
    assert reply.code != 0
    assert "haSharedKey is a secret" in (reply.remark or "")
    assert cluster.broker().store.config.max_message_size == before, "nothing else was changed"
    reply = await change(
        cluster, maxMessageSize=4_000_001, password="notoursatall", haHousekeepingInterval=4_000_002
    )
    assert reply.code == 0
    said = [record.getMessage() for record in caplog.records if "settings" in record.getMessage()]
    assert any("maxMessageSize" in line for line in said)
    assert any("password" in line for line in said)
    for value in ("anothersecretofmine1", "notoursatall", "4000001", "4000002"):
        assert value not in caplog.text
