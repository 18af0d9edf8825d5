"""Telemetry, Heartbeat, NotifyClientTermination and what the broker asks clients."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aerobee.grpc.proto import messages as pb
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message


def producer_settings(*topics: str) -> pb.TelemetryCommand:
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.request_timeout.seconds = 3
    settings.user_agent.language = pb.KOTLIN
    settings.publishing.topics.extend([pb.Resource(name=topic) for topic in topics])
    settings.client_properties["team"] = "a"
    return pb.TelemetryCommand(settings=settings)


def consumer_settings(group: str, topic: str) -> pb.TelemetryCommand:
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = topic
    entry.expression.type, entry.expression.expression = pb.TAG, "A || B"
    return pb.TelemetryCommand(settings=settings)


async def test_a_producer_gets_what_it_needs_to_send(cluster: LocalCluster, client: GrpcClient) -> None:
    stream = client.telemetry()
    await stream.write(producer_settings("orders"))
    answer = await stream.read()
    assert answer.status.code == pb.OK
    settings = answer.settings
    assert (settings.client_type, settings.request_timeout.seconds) == (pb.PRODUCER, 3)
    assert settings.client_properties == {"team": "a"}
    assert settings.publishing.topics[0].name == "orders"
    assert settings.publishing.max_body_size == 4_194_304
    assert settings.publishing.validate_message_type
    assert settings.backoff_policy.max_attempts == 3
    assert settings.backoff_policy.exponential_backoff.initial.nanos == 10_000_000
    members = cluster.broker().producers.members("orders")
    assert [member.client_id for member in members] == ["client-1"]


async def test_a_consumer_joins_its_group(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("orders")
    stream = client.telemetry()
    await stream.write(consumer_settings("readers", "orders"))
    subscription = (await stream.read()).settings.subscription
    assert (subscription.fifo, subscription.receive_batch_size) == (False, 32)
    assert subscription.long_polling_timeout.seconds == 20
    group = cluster.broker().consumers.group("readers")
    assert group is not None
    assert (group.client_ids(), group.subscriptions["orders"].sub_string) == (["client-1"], "A || B")
    found = await client(
        "NotifyClientTermination", pb.NotifyClientTerminationRequest(group=pb.Resource(name="readers"))
    )
    assert found.status.code == pb.OK
    assert cluster.broker().consumers.group("readers") is None


async def test_a_heartbeat_keeps_a_client_that_is_known_and_suffers_others(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    beat = pb.HeartbeatRequest(client_type=pb.PRODUCER)
    assert (await client("Heartbeat", beat)).status.code == pb.OK
    stream = client.telemetry()
    await stream.write(producer_settings("orders"))
    await stream.read()
    for _ in range(
        3
    ):  # in all longer than a client is known; after 60 s of silence a PING would wait for grpcio's thread
        await cluster.advance_clock(50)
        assert (await client("Heartbeat", beat)).status.code == pb.OK
    assert cluster.broker().producers.size_of("orders") == 1
    await cluster.advance_clock(200)
    assert cluster.broker().producers.size_of("orders") == 0


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (
            pb.TelemetryCommand(settings=pb.Settings()),
            grpc.StatusCode.INVALID_ARGUMENT,
            "there is no publishing or subscription data in settings",
        ),
        (
            producer_settings("a b"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "process client telemetryCommand failed. The specified topic[a b] contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            consumer_settings("", "orders"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "process client telemetryCommand failed. the specified group is blank",
        ),
    ],
)
async def test_settings_that_cannot_be_end_the_stream(
    client: GrpcClient, command: pb.TelemetryCommand, code: grpc.StatusCode, text: str
) -> None:
    stream = client.telemetry()
    await stream.write(command)
    assert (await stream.code(), await stream.details()) == (code, text)


async def test_a_half_closed_stream_is_answered_and_ends(client: GrpcClient) -> None:
    stream = client.telemetry()
    await stream.write(producer_settings("orders"))
    await stream.done_writing()
    assert (await stream.read()).status.code == pb.OK
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


def half(topic: str) -> pb.Message:
    made = message(topic)
    made.system_properties.message_type = pb.TRANSACTION
    return made


async def test_a_transaction_is_committed(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("paid", queues=1, attributes="+message.type=TRANSACTION")
    sent = await client("SendMessage", pb.SendMessageRequest(messages=[half("paid")]))
    (entry,) = sent.entries
    assert (entry.status.code, entry.transaction_id) == (pb.OK, entry.message_id)
    assert cluster.broker().store.max_offset("paid", 0) == 0
    end = pb.EndTransactionRequest(
        topic=pb.Resource(name="paid"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=pb.COMMIT,
    )
    assert (await client("EndTransaction", end)).status.code == pb.OK
    assert cluster.broker().store.max_offset("paid", 0) == 1
    assert (await client("EndTransaction", end)).status.code == pb.OK  # a repeated decision
    end.resolution = pb.ROLLBACK
    assert (await client("EndTransaction", end)).status.code == pb.INTERNAL_SERVER_ERROR


async def test_an_orphaned_transaction_is_recovered(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("paid", queues=1, attributes="+message.type=TRANSACTION")
    stream = client.telemetry()
    await stream.write(producer_settings("paid"))
    await stream.read()
    await client("SendMessage", pb.SendMessageRequest(messages=[half("paid")]))
    await cluster.advance_clock(10)
    command = (await stream.read()).recover_orphaned_transaction_command
    assert (command.message.topic.name, command.message.body) == ("paid", b"hello")
    assert command.message.system_properties.body_digest.checksum == "5D41402ABC4B2A76B9719D911017C592"
    assert command.transaction_id == command.message.system_properties.message_id
    end = pb.EndTransactionRequest(
        topic=pb.Resource(name="paid"),
        message_id=command.transaction_id,
        transaction_id=command.transaction_id,
        resolution=pb.COMMIT,
        source=pb.SOURCE_SERVER_CHECK,
    )
    assert (await client("EndTransaction", end)).status.code == pb.OK
    assert cluster.broker().store.max_offset("paid", 0) == 1


async def test_a_delayed_message_is_recalled(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("later", queues=1, attributes="+message.type=DELAY")
    sent = message("later")
    sent.system_properties.message_type = pb.DELAY
    now_s = cluster.broker().clock.now_ms() // 1000
    sent.system_properties.delivery_timestamp.seconds = now_s + 60
    (entry,) = (await client("SendMessage", pb.SendMessageRequest(messages=[sent]))).entries
    assert entry.recall_handle
    recall = pb.RecallMessageRequest(topic=pb.Resource(name="later"), recall_handle=entry.recall_handle)
    found = await client("RecallMessage", recall)
    assert (found.status.code, found.message_id) == (pb.OK, entry.message_id)
    await cluster.advance_clock(120)
    assert cluster.broker().store.max_offset("later", 0) == 0
    recall.recall_handle = "nonsense"
    found = await client("RecallMessage", recall)
    assert (found.status.code, found.status.message) == (
        pb.INTERNAL_SERVER_ERROR,
        "recall handle is invalid",
    )


async def test_an_operator_gets_a_clients_stacks_and_has_it_verify_a_message(
    cluster: LocalCluster, client: GrpcClient
) -> None:
    await cluster.create_topic("orders", queues=1)
    stream = client.telemetry()
    await stream.write(consumer_settings("readers", "orders"))
    await stream.read()
    await client("SendMessage", pb.SendMessageRequest(messages=[message("orders")]))
    (channel,) = cluster.broker().consumers.group("readers").channels.values()  # type: ignore[union-attr]

    async def answer() -> None:
        asked = await stream.read()
        trace = pb.ThreadStackTrace(
            nonce=asked.print_thread_stack_trace_command.nonce, thread_stack_trace="main: waits"
        )
        await stream.write(pb.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=trace))
        asked = await stream.read()
        assert asked.verify_message_command.message.body == b"hello"
        result = pb.VerifyMessageResult(nonce=asked.verify_message_command.nonce)
        status = pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE, message="no")
        await stream.write(pb.TelemetryCommand(status=status, verify_message_result=result))

    from aerobee.remoting.codes import RequestCode
    from aerobee.remoting.command import RemotingCommand

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer())
        peer = channel.peer
        info = await peer.invoke(
            RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, {"jstackEnable": "true"}), timeout_s=60
        )
        assert b"main: waits" in info.body
        record = cluster.broker().store.get_messages("orders", 0, 0, count_max=1).body
        result = await peer.invoke(
            RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, {}, record), timeout_s=60
        )
        assert b"CR_THROW_EXCEPTION" in result.body


async def test_a_stream_without_settings_stays_open(cluster: LocalCluster, client: GrpcClient) -> None:
    """The official Python client reopens its stream without settings; they follow 300 s later."""
    stream = client.telemetry()
    assert await stream.initial_metadata() is not None
    for _ in range(6):
        await cluster.advance_clock(50)
        assert (await client("Heartbeat", pb.HeartbeatRequest(client_type=pb.PRODUCER))).status.code == pb.OK
    await stream.write(producer_settings("orders"))
    assert (await stream.read()).status.code == pb.OK
