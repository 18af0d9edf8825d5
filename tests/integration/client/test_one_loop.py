"""A client lives once, in one event loop; a use in another loop fails with Aerobee's error, not Python's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, PullConsumer, PushConsumer
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.session import session
from aerobee.errors import TopicNotExist, UsageError
from aerobee.message import Message
from aerobee.testing import LocalCluster, ThreadedCluster


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadedCluster() as cluster:
        cluster.create_topic("orders", 1)
        yield cluster.nameserver_address


def test_a_second_run_is_told_that_the_first_one_took_the_client_along(address: str) -> None:
    async def begin() -> tuple[Producer, PullConsumer]:
        producer, consumer = Producer(address, "PG"), PullConsumer(address, "G")
        await producer.start()
        await consumer.start()
        await producer.send(Message("orders", b"x"))
        await consumer.subscribe("orders")
        return producer, consumer

    async def continue_with(work: str) -> None:
        await {
            "send": lambda: producer.send(Message("orders", b"x")),
            "send with a key": lambda: producer.send(Message("orders", b"x"), message_group="k"),
            "close": producer.close,
            "poll": consumer.poll,
            "close the consumer": consumer.close,
        }[work]()

    producer, consumer = asyncio.run(begin())
    for work in ("send", "send with a key", "poll", "close", "close the consumer"):
        with pytest.raises(UsageError, match="another event loop"):
            asyncio.run(continue_with(work))


async def test_another_thread_needs_a_client_of_its_own(address: str) -> None:
    failures: list[BaseException] = []

    def work(producer: Producer) -> None:
        for key in (None, "k"):
            try:
                asyncio.run(producer.send(Message("orders", b"x"), message_group=key))
            except BaseException as error:
                failures.append(error)

    async with Producer(address, "PG") as producer:
        await producer.send(Message("orders", b"x"))
        thread = threading.Thread(target=work, args=(producer,))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert [type(error) for error in failures] == [UsageError, UsageError], failures
        await producer.send(Message("orders", b"still well"))


async def test_a_client_that_was_closed_stays_closed(address: str) -> None:
    producer = Producer(address, "PG")
    async with producer:
        pass
    with pytest.raises(UsageError, match="create a new one"):
        await producer.start()
    with pytest.raises(UsageError, match="create a new one"):
        await producer.send(Message("orders", b"x"))


async def test_a_start_that_was_cut_off_before_anything_was_open_is_tried_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server's name was looked up for too long."""

    async def never(addresses: object) -> str:
        return await asyncio.get_running_loop().create_future()

    producer = Producer(address, "PG")
    with monkeypatch.context() as patched:
        patched.setattr(session, "local_ip", never)
        starting = asyncio.create_task(producer.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    async with producer:
        await producer.send(Message("orders", b"x"))


async def test_reading_a_topic_that_does_not_exist_says_what_to_do(address: str) -> None:
    async with PullConsumer(address, "G") as consumer:
        for call in (consumer.subscribe, consumer.queues):
            with pytest.raises(TopicNotExist, match="topic nowhere does not exist; `aerobee topic create"):
                await call("nowhere")


async def test_subscriptions_and_handler_need_no_names() -> None:
    async with LocalCluster() as cluster:
        async with cluster.producer() as producer:
            await producer.send(Message("orders", b"x"))
        arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with PushConsumer(
            cluster.nameserver_address,
            "G",
            ["orders"],
            lambda message: arrived_in(arrived, message),
            config=config,
        ):
            async with asyncio.timeout(60):
                assert await arrived == b"x"


def arrived_in(future: asyncio.Future[bytes], message: ReceivedMessage) -> None:
    future.get_loop().call_soon_threadsafe(lambda: future.done() or future.set_result(message.body))
