"""Values instead of bodies: sent by a serializer, read by a deserializer; what cannot be read goes to the dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    MessageModel,
    PullConsumer,
    PullConsumerConfig,
    SimpleConsumer,
    SimpleConsumerConfig,
    retry,
)
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.verdict import GiveBack
from aerobee.client.consumer.give_back import GivesBack
from aerobee.client.serialize import CloudEvent, CloudEvents, Json
from aerobee.errors import BodyUnreadable, MessageDamaged, UsageError
from aerobee.message import Message
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

TOPIC = "orders"
BAD = b"{no JSON"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with asyncio.timeout(60), LocalCluster() as cluster:
        await cluster.create_topic(TOPIC, 1)
        yield cluster


async def fill(cluster: LocalCluster) -> None:
    """Orders 0, 1 and 2, with one that is no JSON after the first."""
    async with cluster.producer(serializer=Json()) as producer:
        await producer.send(producer.message(TOPIC, {"number": 0}, tag="new"))
        await producer.send(Message(TOPIC, BAD))
        await producer.send_batch([producer.message(TOPIC, {"number": number}) for number in (1, 2)])


async def dead_reasons(cluster: LocalCluster) -> list[tuple[bytes, str]]:
    async with cluster.admin() as admin:
        return [(dead.message.body, dead.reason) async for dead in admin.dead_letters("G")]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"batch_size": 10},
        {"orderly": True},
        {"orderly": True, "batch_size": 10},
        {"client_rebalance": False},
        {"client_rebalance": False, "batch_size": 10},
    ],
    ids=["one by one", "batch", "orderly", "orderly batch", "pop", "pop batch"],
)
async def test_a_handler_gets_values_and_unreadable_bodies_die(
    cluster: LocalCluster, fields: dict[str, object]
) -> None:
    await fill(cluster)
    numbers: list[int] = []

    def handle(work: ReceivedMessage | list[ReceivedMessage]) -> None:
        for message in work if isinstance(work, list) else [work]:
            numbers.append(message.value["number"])

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, suspend_s=0.05, **fields)  # type: ignore[arg-type]
    store = cluster.broker().store
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config, deserializer=Json()):
        await wait_until(lambda: sorted(numbers) == [0, 1, 2] and store.max_offset("%DLQ%G", 0) == 1)
    ((body, reason),) = await dead_reasons(cluster)
    assert body == BAD
    assert reason.startswith("Json cannot read the body: ")


async def test_a_loop_gets_values_and_skips_unreadable_bodies(cluster: LocalCluster) -> None:
    await fill(cluster)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    numbers: list[int] = []
    store = cluster.broker().store
    async with cluster.push_consumer("G", {TOPIC: "*"}, config=config, deserializer=Json()) as consumer:
        async for message in consumer:
            numbers.append(message.value["number"])
            if len(numbers) == 3:
                break
        await wait_until(lambda: store.max_offset("%DLQ%G", 0) == 1)
    assert numbers == [0, 1, 2]


async def test_a_broadcast_consumer_passes_what_it_cannot_read(
    cluster: LocalCluster, tmp_path: object
) -> None:
    await fill(cluster)
    numbers: list[int] = []
    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST,
        model=MessageModel.BROADCASTING,
        local_offsets_directory=str(tmp_path),
    )
    async with cluster.push_consumer(
        "G",
        {TOPIC: "*"},
        lambda message: numbers.append(message.value["number"]),
        config=config,
        deserializer=Json(),
    ):
        await wait_until(lambda: sorted(numbers) == [0, 1, 2])


async def test_cloud_events_arrive_in_both_forms(cluster: LocalCluster) -> None:
    events = [CloudEvent(type="paid", source="/shop", data={"number": number}) for number in (1, 2)]
    for event, form in zip(events, ("binary", "structured"), strict=True):
        async with cluster.producer(serializer=CloudEvents(form=form)) as producer:  # type: ignore[arg-type]
            await producer.send(producer.message(TOPIC, event))
    got: list[CloudEvent] = []
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with cluster.push_consumer(
        "G",
        {TOPIC: "*"},
        lambda message: got.append(message.value),
        config=config,
        deserializer=CloudEvents(),
    ):
        await wait_until(lambda: len(got) == 2)
    assert sorted(got, key=lambda event: event.data["number"]) == events


async def test_without_a_deserializer_a_message_has_no_value(cluster: LocalCluster) -> None:
    await fill(cluster)
    errors: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        try:
            _ = message.value
        except UsageError as error:
            errors.append(str(error))

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config):
        await wait_until(lambda: len(errors) == 4)
    assert "deserializer=Json()" in errors[0]


@pytest.mark.parametrize(
    "fields",
    [{}, {"orderly": True}, {"client_rebalance": False}],
    ids=["batch", "orderly batch", "pop batch"],
)
async def test_an_unreadable_body_dies_once_though_the_batch_fails(
    cluster: LocalCluster, fields: dict[str, object]
) -> None:
    await fill(cluster)
    seen: list[int] = []

    def handle(work: list[ReceivedMessage]) -> None:
        seen.extend(message.value["number"] for message in work)
        if any(seen.count(message.value["number"]) < 3 for message in work):
            retry(after=0.05)

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, batch_size=10, suspend_s=0.05, **fields)  # type: ignore[arg-type]
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config, deserializer=Json()):
        await wait_until(lambda: all(seen.count(number) >= 3 for number in (0, 1, 2)), timeout_s=30)
    assert [body for body, _ in await dead_reasons(cluster)] == [BAD]


@pytest.mark.parametrize(
    "fields",
    [{}, {"orderly": True}, {"client_rebalance": False}],
    ids=["batch", "orderly batch", "pop batch"],
)
async def test_the_readable_messages_of_a_batch_do_not_die_when_a_broker_refuses_the_unreadable_one(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
) -> None:
    await fill(cluster)
    numbers: set[int] = set()
    give_back, calls = GivesBack.give_back, 0

    async def refused_once(gives_back: GivesBack, message: ReceivedMessage, verdict: GiveBack) -> bool:
        nonlocal calls
        calls += 1
        return calls > 1 and await give_back(gives_back, message, verdict)

    def handle(work: list[ReceivedMessage]) -> None:
        numbers.update(message.value["number"] for message in work)

    monkeypatch.setattr(GivesBack, "give_back", refused_once)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, batch_size=10, suspend_s=0.05, **fields)  # type: ignore[arg-type]
    store = cluster.broker().store
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config, deserializer=Json()):
        await wait_until(lambda: store.max_offset("%DLQ%G", 0) > 0 and numbers == {0, 1, 2})
    assert [body for body, _ in await dead_reasons(cluster)] == [BAD]


@pytest.mark.parametrize("fields", [{}, {"client_rebalance": False}], ids=["batch", "pop batch"])
async def test_of_a_batch_the_damaged_message_dies_alone(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
) -> None:
    """The handler reads the bodies itself, and fails at the damaged one: it has not handled the others."""
    check = ReceivedMessage._check_body

    def checked(message: ReceivedMessage) -> None:
        if message.stored_body == BAD and message.queue.topic == TOPIC:
            raise MessageDamaged("it does not match its CRC")
        check(message)

    bodies: set[bytes] = set()
    monkeypatch.setattr(ReceivedMessage, "_check_body", checked)
    await fill(cluster)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, batch_size=10, **fields)  # type: ignore[arg-type]
    store = cluster.broker().store
    async with cluster.push_consumer(
        "G", {TOPIC: "*"}, lambda work: bodies.update([each.body for each in work]), config=config
    ):
        await wait_until(lambda: len(bodies) == 3)
    assert store.max_offset("%DLQ%G", 0) == 1
    ((body, _),) = await dead_reasons(cluster)
    assert body == BAD


async def test_received_messages_have_values_or_raise_when_read(cluster: LocalCluster) -> None:
    await fill(cluster)
    simple = SimpleConsumer(
        cluster.nameserver_address,
        "simple",
        [TOPIC],
        config=SimpleConsumerConfig(from_begin=True),
        deserializer=Json(),
    )
    pull = PullConsumer(
        cluster.nameserver_address,
        "pullers",
        config=PullConsumerConfig(consume_from=ConsumeFrom.FIRST),
        deserializer=Json(),
    )
    taken: list[ReceivedMessage] = []
    async with simple, pull:
        await pull.subscribe(TOPIC)
        while len(taken) < 4:
            taken += await simple.receive(wait_s=1.0)
        polled: list[ReceivedMessage] = []
        while len(polled) < 4:
            polled += await pull.poll(1.0)
    for messages in (taken, polled):
        assert [each.value["number"] for each in messages if each.body != BAD] == [0, 1, 2]
        (bad,) = [each for each in messages if each.body == BAD]
        for _ in range(2):
            with pytest.raises(BodyUnreadable, match="Json cannot read the body"):
                _ = bad.value


async def test_a_consumer_without_deserializer_says_so(cluster: LocalCluster) -> None:
    await fill(cluster)
    async with cluster.simple_consumer(
        "simple", [TOPIC], config=SimpleConsumerConfig(from_begin=True)
    ) as consumer:
        while not (messages := await consumer.receive(wait_s=1.0)):
            pass
    with pytest.raises(UsageError, match="no deserializer"):
        _ = messages[0].value
    with pytest.raises(UsageError, match="deserializer"):
        SimpleConsumer(cluster.nameserver_address, "g", [TOPIC], deserializer=Json)  # type: ignore[arg-type]
