"""FastStream's broker over a cluster, in this process: what publishers and subscribers do.

What becomes of messages when something fails: test_faststream_failures.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream import AckPolicy, Context, FastStream, Path, TestApp
from faststream.exceptions import FeatureNotSupportedException, SetupError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from pydantic import BaseModel

from aerobee.client.base.received import ReceivedMessage
from aerobee.client.consumer.push_consumer import PushConsumer
from aerobee.client.producer.transaction import TransactionState
from aerobee.contrib.faststream import (
    AerobeeBroker,
    AerobeeMessage,
    AerobeeResponse,
    AerobeeRouter,
    Sql,
    TestAerobeeBroker,
)
from aerobee.errors import UsageError
from aerobee.message import Message
from aerobee.testing import LocalCluster
from tests.integration.contrib.faststream_scenario import held_count
from tests.waiting import wait_until


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config={"enable_property_filter": True}) as cluster:
        yield cluster


@pytest.fixture
async def broker(cluster: LocalCluster) -> AsyncIterator[AerobeeBroker]:
    broker = AerobeeBroker(cluster.nameserver_address, queue_count=2)
    yield broker
    await broker.stop()


class Order(BaseModel):
    number: int


async def test_handler_receives_body_headers_and_options(broker: AerobeeBroker) -> None:
    seen: list[tuple[Order, AerobeeMessage]] = []

    @broker.subscriber("orders")
    async def handle(order: Order, message: AerobeeMessage) -> None:
        seen.append((order, message))

    await broker.start()
    assert await broker.ping()
    result = await broker.publish(
        Order(number=7),
        "orders",
        tag="new",
        keys=("o-7",),
        message_group="ada",
        headers={"region": "EU", "try": 1},
        correlation_id="c-1",
    )
    await wait_until(lambda: seen)
    order, message = seen[0]
    raw = message.raw_message
    assert order == Order(number=7)
    assert (raw.tag, raw.keys, raw.message_group) == ("new", ("o-7",), "ada")
    assert (message.headers["region"], message.headers["try"]) == ("EU", "1")
    assert message.correlation_id == "c-1"
    assert message.message_id == raw.message_id == result.message_id
    assert "UNIQ_KEY" not in message.headers


async def test_delay_is_kept_by_the_broker(broker: AerobeeBroker) -> None:
    seen: list[tuple[str, float]] = []

    @broker.subscriber("later")
    async def handle(text: str) -> None:
        seen.append((text, time.time()))

    await broker.start()
    begin = time.time()
    await broker.publish("delay", "later", delay=timedelta(seconds=1.5))
    await broker.publish("at", "later", deliver_at=datetime.now(UTC) + timedelta(seconds=1))
    await wait_until(lambda: len(seen) == 2)
    assert dict(seen)["delay"] >= begin + 1.5
    assert dict(seen)["at"] >= begin + 1


async def test_tags_and_sql_filter_at_the_broker(broker: AerobeeBroker) -> None:
    tagged: list[str] = []
    large: list[str] = []

    @broker.subscriber("sales", group="tags", tag="paid || refunded")
    async def by_tag(text: str) -> None:
        tagged.append(text)

    @broker.subscriber("sales", group="sql", tag=Sql("price > 5"))
    async def by_price(text: str) -> None:
        large.append(text)

    await broker.start()
    await broker.publish("a", "sales", tag="paid", headers={"price": 1})
    await broker.publish("b", "sales", tag="open", headers={"price": 9})
    await broker.publish("c", "sales", tag="refunded", headers={"price": 10})
    await wait_until(lambda: len(tagged) == 2 and len(large) == 2)
    assert sorted(tagged) == ["a", "c"]
    assert sorted(large) == ["b", "c"]


async def test_parameters_of_a_tag_are_the_path(broker: AerobeeBroker) -> None:
    seen: list[tuple[str, int]] = []

    @broker.subscriber("visits", tag="{country}-{number}")
    async def visit(country: str = Path(), number: int = Path()) -> None:
        seen.append((country, number))

    await broker.start()
    await broker.publish("", "visits", tag="nowhere")
    await broker.publish("", "visits", tag="it-3")
    await wait_until(lambda: seen)
    await wait_until(lambda: held_count(broker) == 0)
    assert seen == [("it", 3)]


async def test_request_of_and_reply_to_plain_clients(cluster: LocalCluster, broker: AerobeeBroker) -> None:
    """Each side of a request may be a RocketMQ client without FastStream."""

    @broker.subscriber("prices")
    async def price(article: str) -> AerobeeResponse:
        return AerobeeResponse(len(article), headers={"currency": "EUR"})

    await broker.start()
    async with cluster.producer("asking") as producer:
        reply = await producer.request(Message("prices", b"bell"), timeout_s=30)
        assert reply.body == b"4"
        assert reply.properties["currency"] == "EUR"
        await cluster.create_topic("plain")

        async def answer(message: ReceivedMessage) -> None:
            await producer.reply_to(message, b"plain " + message.body)

        async with PushConsumer(cluster.nameserver_address, "plain", {"plain": "*"}, answer):
            found = await broker.request("bell", "plain", timeout=30, correlation_id="c-2")
            assert found.body == b"plain bell"
            assert found.correlation_id == "c-2"


async def test_reply_to_names_a_topic(broker: AerobeeBroker) -> None:
    seen: list[tuple[str, str]] = []

    @broker.subscriber("questions")
    async def answer(text: str) -> str:
        return f"re: {text}"

    @broker.subscriber("answers")
    async def read(text: str, message: AerobeeMessage) -> None:
        seen.append((text, message.correlation_id))

    await broker.start()
    await broker.publish("hello", "questions", reply_to="answers", correlation_id="c-3")
    await wait_until(lambda: seen)
    assert seen == [("re: hello", "c-3")]


async def test_request_without_a_reply_times_out(cluster: LocalCluster, broker: AerobeeBroker) -> None:
    await cluster.create_topic("silent")
    await broker.connect()
    with pytest.raises(TimeoutError, match="silent"):
        await broker.request("hello", "silent", timeout=0.3)


async def test_batches_of_publishers_and_subscribers(broker: AerobeeBroker) -> None:
    batches: list[list[int]] = []
    publisher = broker.publisher("doubled", batch=True)

    @broker.subscriber("numbers")
    @publisher
    async def double(number: int) -> list[int]:
        return [number, number]

    @broker.subscriber("doubled", batch=True, max_records=4, batch_timeout_s=30)
    async def collect(numbers: list[int]) -> None:
        batches.append(numbers)

    await broker.start()
    results = await broker.publish_batch(1, 2, topic="numbers", message_group="one queue")
    assert [result.queue_offset for result in results] == [0, 1]
    await wait_until(lambda: batches)
    assert sorted(batches[0]) == [1, 1, 2, 2]
    await wait_until(lambda: held_count(broker) == 0)


async def test_ordered_subscriber_keeps_the_order_of_a_group(broker: AerobeeBroker) -> None:
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    running: set[str] = set()
    failed: set[int] = set()

    @broker.subscriber("steps", ordered=True, max_workers=4, retry_delays_s=0.05)
    async def step(number: int, message: AerobeeMessage) -> None:
        name = message.raw_message.message_group
        assert name not in running
        running.add(name)
        try:
            await asyncio.sleep(0.001)
            if name == "b" and number % 7 == 3 and number not in failed:
                failed.add(number)
                raise ValueError("as wanted")
            seen[name].append(number)
        finally:
            running.discard(name)

    await broker.start()
    for number in range(30):
        for name in seen:
            await broker.publish(number, "steps", message_group=name)
    await wait_until(lambda: all(len(numbers) == 30 for numbers in seen.values()))
    assert all(numbers == list(range(30)) for numbers in seen.values())
    assert len(failed) == 4


async def test_transaction_commits_and_rolls_back(cluster: LocalCluster) -> None:
    async def checker(_: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    broker = AerobeeBroker(cluster.nameserver_address, producer_group="shop", checker=checker)
    seen: list[str] = []

    @broker.subscriber("paid")
    async def handle(text: str) -> None:
        seen.append(text)

    try:
        await broker.start()
        async with broker.transaction("committed", "paid") as transaction:
            assert transaction.transaction_id
            assert seen == []
        async with broker.transaction("rolled back", "paid") as transaction:
            transaction.rollback()
        with pytest.raises(ValueError):
            async with broker.transaction("failed", "paid", rollback_on=(ValueError,)):
                raise ValueError("as wanted")
        await broker.publish("last", "paid")
        await wait_until(lambda: len(seen) == 2)
        assert sorted(seen) == ["committed", "last"]
    finally:
        await broker.stop()


async def test_transaction_needs_a_checker_and_its_own_group(broker: AerobeeBroker) -> None:
    await broker.connect()
    with pytest.raises(UsageError, match="needs a checker"):
        async with broker.transaction("x", "paid"):
            raise AssertionError("a half message was sent")
    with pytest.raises(SetupError, match="producer_group"):
        AerobeeBroker(checker=lambda _: None)


async def test_get_one_and_iteration_leave_the_verdict_to_the_caller(broker: AerobeeBroker) -> None:
    subscriber = broker.subscriber("reads", persistent=True)
    await broker.start()
    assert await subscriber.get_one(timeout=0.1) is None
    for text in "ab":
        await broker.publish(text, "reads")
    message = await subscriber.get_one(timeout=60)
    first = await message.decode()
    await message.ack()
    async for message in subscriber:
        assert {first, await message.decode()} == {"a", "b"}
        await message.ack()
        break
    await wait_until(lambda: held_count(broker) == 0)


async def test_group_that_begins_at_the_end(cluster: LocalCluster, broker: AerobeeBroker) -> None:
    await cluster.create_topic("news")
    seen: list[str] = []

    @broker.subscriber("news", from_begin=False)
    async def read(text: str) -> None:
        seen.append(text)

    await broker.connect()
    await broker.publish("old", "news")
    await broker.start()
    await broker.publish("new", "news")
    await wait_until(lambda: seen)
    assert seen == ["new"]


async def test_lifespan_starts_and_stops_the_broker(cluster: LocalCluster) -> None:
    broker, events = AerobeeBroker(cluster.nameserver_address), []

    @broker.subscriber("life")
    async def handle(text: str, word: str = Context()) -> None:
        events.append(f"{word} {text}")

    app = FastStream(broker)

    @app.on_startup
    async def begin() -> None:
        app.context.set_global("word", "said")

    @app.after_startup
    async def started() -> None:
        await broker.publish("hello", "life")

    async with TestApp(app):
        await wait_until(lambda: events)
    assert events == ["said hello"]
    assert not await broker.ping()


async def test_router_prefixes_topics_and_default_groups(broker: AerobeeBroker) -> None:
    router, seen = AerobeeRouter(prefix="shop-"), []

    @router.subscriber("orders")
    @router.publisher("parcels")
    async def pack(text: str) -> str:
        return f"{text} packed"

    @router.subscriber("parcels")
    async def send(text: str, message: AerobeeMessage) -> None:
        seen.append((text, message.raw_message.topic))

    broker.include_router(router)
    await broker.start()
    await broker.publish("bell", "shop-orders")
    await wait_until(lambda: seen)
    assert seen == [("bell packed", "shop-parcels")]
    found: Any = broker.subscribers
    assert {subscriber.group for subscriber in found} == {"shop-orders", "shop-parcels"}


async def test_memory_broker_runs_handlers_without_a_cluster() -> None:
    broker, seen = AerobeeBroker("127.0.0.1:1", producer_group="g", checker=lambda _: None), []

    @broker.subscriber("a", group="one", tag="{kind}")
    async def one(text: str, kind: str = Path()) -> str:
        seen.append(f"one {kind} {text}")
        return text.upper()

    @broker.subscriber("a", group="two", tag="y || z")
    async def two(text: str) -> None:
        seen.append(f"two {text}")

    @broker.subscriber("batches", batch=True)
    async def three(texts: list[str]) -> None:
        seen.append(texts)

    async with TestAerobeeBroker(broker) as memory:
        await memory.publish("p", "a", tag="x", delay=3600)
        await memory.publish("q", "a", tag="y")
        await memory.publish_batch("r", "s", topic="batches")
        answer = await memory.request("t", "a", tag="x")
        assert await answer.decode() == "T"
        async with memory.transaction("u", "a", tag="x") as transaction:
            transaction.rollback()
        async with memory.transaction("v", "a", tag="x"):
            seen.append("work")
        one.mock.assert_called_with("v")
    assert seen == ["one x p", "one y q", "two q", ["r", "s"], "one x t", "work", "one x v"]


def test_options_that_exclude_each_other_are_errors() -> None:
    broker = AerobeeBroker()
    for options, text in [
        ({"ordered": True, "batch": True}, "excludes batch"),
        ({"ordered": True, "invisible_s": 5.0}, "excludes invisible_s"),
        ({"max_workers": 0}, "max_workers is 0"),
        ({"invisible_s": 0.0}, "invisible_s is 0"),
        ({"retry_delays_s": -1}, "retry_delays_s is -1"),
        ({"tag": "{a}{a}"}, "twice"),
        ({"tag": "{a} || b"}, "one of both"),
    ]:
        given: Any = options
        with pytest.raises(SetupError, match=text):
            broker.subscriber("x", **given)
    with pytest.raises(TypeError, match="unknown options: tags"):
        broker.subscriber("x", tags="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unknown options: tags"):
        broker.publisher("x", tags="a")  # type: ignore[call-arg]


async def test_ordered_subscriber_needs_a_handler(broker: AerobeeBroker) -> None:
    subscriber = broker.subscriber("x", ordered=True)
    with pytest.raises(FeatureNotSupportedException):
        await subscriber.get_one()


def test_security_becomes_keys_and_tls() -> None:
    client = AerobeeBroker(security=SASLPlaintext("ada", "secret", use_ssl=True)).config.client
    assert (client.access_key, client.secret_key, client.tls) == ("ada", "secret", True)
    assert AerobeeBroker(security=BaseSecurity(use_ssl=True)).config.client.tls
    with pytest.raises(NotImplementedError):
        AerobeeBroker(security=SASLScram256("ada", "secret"))


def test_router_and_broker_set_the_acknowledgement_policy() -> None:
    broker = AerobeeBroker(ack_policy=AckPolicy.ACK)
    assert broker.subscriber("a").ack_policy is AckPolicy.ACK
    assert broker.subscriber("a", ack_policy=AckPolicy.MANUAL).ack_policy is AckPolicy.MANUAL
    assert AerobeeBroker().subscriber("a").ack_policy is AckPolicy.NACK_ON_ERROR
