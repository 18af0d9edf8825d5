"""A handler that ends with CancelledError, or another BaseException, fails as with any error: no worker is lost."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.client import (
    Admin,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from aerobee.message import Message
from aerobee.testing import LocalCluster
from tests.waiting import wait_until


class Outcome(BaseException):
    """As test tools raise them."""


async def await_what_was_cancelled():
    other = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    other.cancel()
    await other


async def raise_an_outcome():
    raise Outcome("not an Exception")


FORMS = {
    "concurrent": ConsumerConfig(consume_from=ConsumeFrom.FIRST, concurrency=1, drain_s=1.0),
    "orderly": ConsumerConfig(
        consume_from=ConsumeFrom.FIRST, concurrency=1, drain_s=1.0, orderly=True, suspend_s=0.05
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fail", [await_what_was_cancelled, raise_an_outcome])
async def test_consumption_continues_and_the_message_is_retried(
    aerobee_cluster: LocalCluster, form, fail, caplog
):
    await aerobee_cluster.create_topic("orders", 1)
    handled = []

    async def handle(message):
        handled.append(message.body)
        if message.body == b"bad" and handled.count(b"bad") == 1:
            await fail()

    addresses = aerobee_cluster.nameserver_address
    async with aerobee_cluster.producer() as producer:
        await producer.send(Message("orders", b"bad"))
        await producer.send(Message("orders", b"good"))
    async with PushConsumer(addresses, "G", {"orders": "*"}, handle, config=FORMS[form]) as consumer:
        await wait_until(lambda: b"good" in handled)
        assert consumer._consumption.failed_count == 1
    assert any("failed for" in record.getMessage() for record in caplog.records)


async def test_a_handler_that_cancels_its_own_task_costs_no_worker(broker):
    handled = []

    async def handle(message):
        handled.append(message.body)
        if message.body == b"bad":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, concurrency=1, drain_s=1.0)
    async with (
        Producer(broker.address, "PG") as producer,
        PushConsumer(broker.address, "G", {"orders": "*"}, handle, config=config),
    ):
        await producer.send(Message("orders", b"bad"))
        await wait_until(lambda: b"bad" in handled)
        await producer.send(Message("orders", b"good"))
        await wait_until(lambda: b"good" in handled)


@pytest.mark.parametrize("fail", [await_what_was_cancelled, raise_an_outcome])
async def test_who_asks_for_one_message_to_be_handled_is_told_of_it(aerobee_cluster: LocalCluster, fail):
    """CONSUME_MESSAGE_DIRECTLY has an answer whatever the handler raises."""
    await aerobee_cluster.create_topic("orders", 1)
    handled = []

    async def handle(message):
        handled.append(message.body)
        if len(handled) > 1:
            await fail()

    addresses = aerobee_cluster.nameserver_address
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, concurrency=1, drain_s=1.0)
    async with (
        aerobee_cluster.producer() as producer,
        PushConsumer(addresses, "G", {"orders": "*"}, handle, config=config) as consumer,
        Admin(addresses) as admin,
    ):
        sent = await producer.send(Message("orders", b"one"))
        await wait_until(lambda: handled)
        direct = await admin.consume_directly("G", consumer.client_id, "orders", sent.offset_message_id)
    assert direct.result == "CR_THROW_EXCEPTION"


@pytest.mark.parametrize("fail", [await_what_was_cancelled, raise_an_outcome])
async def test_a_checker_that_ends_so_leaves_the_transaction_open(fail, caplog):
    """It is logged and answered as unknown; the broker asks again."""
    asked = []

    async def checker(message):
        asked.append(message.body)
        if len(asked) == 1:
            await fail()
        return TransactionState.COMMIT

    settings = {"transactionTimeOut": "100", "transactionCheckInterval": "100"}
    async with LocalCluster(broker_config=settings) as cluster:
        await cluster.create_topic("orders", 1)
        async with TransactionProducer(cluster.nameserver_address, "PG", checker=checker) as producer:
            async with producer.transaction(Message("orders", b"one")) as transaction:
                transaction.leave_open()
            await wait_until(lambda: len(asked) > 1)
    assert any("checker failed for" in record.getMessage() for record in caplog.records)
