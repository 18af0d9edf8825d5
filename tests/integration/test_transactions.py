"""Transactions over real sockets: our client, a LocalCluster, and requests as RocketMQ's clients send them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from aerobee import Message, MessageQueue, TransactionState
from aerobee.client.base.results import SendStatus
from aerobee.client.producer.transaction_producer import TransactionProducer
from aerobee.errors import SendFailed, UsageError
from aerobee.testing.local_cluster import LocalCluster
from tests.waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", 1)
        yield cluster


async def bodies(cluster: LocalCluster, topic: str = "orders") -> list[bytes]:
    """What stands in queue 0 of the topic."""
    store = cluster.broker().store
    async with cluster.pull_consumer("looker") as consumer:
        queue = MessageQueue(topic, cluster.broker_names[0], 0)
        await consumer.assign([queue])
        await consumer.seek_to_begin(queue)
        found: list[bytes] = []
        while len(found) < store.max_offset(topic, 0):
            found += [message.body for message in await consumer.poll(1.0)]
        return found


def info(cluster: LocalCluster) -> dict[str, int]:
    """The broker's own figures about transactions."""
    figures: dict[str, int] = {}
    for feature in cluster.broker().features:
        if feature.name == "transactions":
            figures = {name: int(text) for name, text in feature.runtime_info().items()}
    return figures


def no_checks(message: object) -> TransactionState:
    raise AssertionError(f"unexpected check of {message}")


async def test_committed_message_is_delivered_and_rolled_back_one_is_not(cluster: LocalCluster) -> None:
    async with cluster.transaction_producer("PG", checker=no_checks) as producer:
        committed = await producer.send_in_transaction(
            Message("orders", b"paid", tag="x", keys=("k1",)), executor=lambda message, argument: COMMIT
        )
        rolled_back = await producer.send_in_transaction(
            Message("orders", b"refused"), executor=lambda message, argument: ROLLBACK
        )
    assert committed.confirmed
    assert committed.state is COMMIT
    assert rolled_back.confirmed
    assert rolled_back.state is ROLLBACK
    assert await bodies(cluster) == [b"paid"]
    async with cluster.admin() as admin:
        (found,) = await admin.messages_by_key("orders", "k1")
    assert found.message_id == committed.transaction_id
    assert found.tag == "x"


async def test_block_commits_when_left_and_stays_invisible_while_inside(cluster: LocalCluster) -> None:
    async with cluster.transaction_producer("PG", checker=no_checks) as producer:
        async with producer.transaction(Message("orders", b"paid")) as transaction:
            assert transaction.transaction_id
            assert await bodies(cluster) == []
        assert transaction.result is not None
        assert transaction.result.confirmed
        async with producer.transaction(Message("orders", b"not paid")) as transaction:
            transaction.rollback()
        with pytest.raises(UsageError, match="used once"):
            await transaction.__aenter__()
    assert await bodies(cluster) == [b"paid"]


async def test_exception_leaves_the_decision_to_the_checker_unless_it_is_named(cluster: LocalCluster) -> None:
    asked: list[bytes] = []

    def checker(message):
        asked.append(message.body)
        return COMMIT

    async with cluster.transaction_producer("PG", checker=checker) as producer:
        with pytest.raises(OSError, match="timed out"):
            async with producer.transaction(Message("orders", b"who knows")):
                raise OSError("the database timed out on commit")
        with pytest.raises(ValueError, match="no such order"):
            async with producer.transaction(Message("orders", b"never began"), rollback_on=(ValueError,)):
                raise ValueError("no such order")
        await cluster.advance_clock(10)
        await wait_until(lambda: info(cluster)["openTransactions"] == 0, "the checker's answer arrived")
    assert asked == [b"who knows"]
    assert await bodies(cluster) == [b"who knows"]


async def test_executor_that_fails_leaves_the_transaction_open(cluster: LocalCluster) -> None:
    async def executor(message, argument):
        raise RuntimeError("in the middle")

    async with cluster.transaction_producer(
        "PG", checker=lambda message: ROLLBACK, executor=executor
    ) as producer:
        result = await producer.send_in_transaction(Message("orders", b"half"))
        assert result.state is UNKNOWN
        assert isinstance(result.error, RuntimeError)
        assert info(cluster)["openTransactions"] == 1
        await cluster.advance_clock(10)
        await wait_until(lambda: info(cluster)["openTransactions"] == 0, "it was rolled back by the checker")
    assert await bodies(cluster) == []


async def test_another_producer_of_the_group_is_asked_when_the_first_died(cluster: LocalCluster) -> None:
    first = cluster.transaction_producer("PG", checker=no_checks)
    await first.start()
    await first.send_in_transaction(Message("orders", b"orphan"), executor=lambda message, argument: UNKNOWN)
    await first.close()
    await cluster.advance_clock(120)
    figures = info(cluster)
    assert figures["openTransactions"] == 1
    assert figures["transactionChecksSent"] == 0  # without producers nothing counts
    assert figures["transactionChecksUnsent"] >= 2
    async with cluster.transaction_producer("PG", checker=lambda message: COMMIT):
        # It sends nothing.
        await wait_until(lambda: len(cluster.broker().producers.members("PG")) == 1, "the broker knows it")
        await cluster.advance_clock(60)
        await wait_until(lambda: info(cluster)["openTransactions"] == 0, "it answered")
    assert await bodies(cluster) == [b"orphan"]


async def test_checks_end_and_the_message_goes_to_the_topic_of_those_given_up(cluster: LocalCluster) -> None:
    cluster.broker().live.replace(transaction_check_max=3)
    asked: list[str] = []

    def checker(message):
        asked.append(message.properties["TRANSACTION_CHECK_TIMES"])
        return UNKNOWN

    async with cluster.transaction_producer("PG", checker=checker) as producer:
        result = await producer.send_in_transaction(
            Message("orders", b"nobody knows"), executor=lambda message, argument: UNKNOWN
        )
        for count in range(1, 4):
            await cluster.advance_clock(61)
            await wait_until(lambda count=count: len(asked) >= count, f"check {count} arrived")
        await cluster.advance_clock(61)
        await wait_until(lambda: info(cluster)["transactionsGivenUp"] == 1, "it was given up")
        assert asked == ["1", "2", "3"]
        assert await bodies(cluster) == []
        assert await bodies(cluster, "TRANS_CHECK_MAX_TIME_TOPIC") == [b"nobody knows"]
        async with cluster.admin() as admin:
            (listed,) = (await admin.transactions(state="given-up")).transactions
            assert listed.transaction_id == result.transaction_id
            assert listed.checks == 3
            await admin.resume_transaction_checks("orders", listed.offset_message_id)
            assert (await admin.transactions()).total == 1
            outcome = await admin.resolve_transaction(result.transaction_id, "commit")
            assert outcome.outcome == "committed"
            assert (await admin.transactions(state="given-up")).total == 0
    assert await bodies(cluster) == [b"nobody knows"]


async def test_unsafe_store_answer_means_rollback_and_no_local_work(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[bytes] = []
    async with cluster.transaction_producer("PG", checker=no_checks) as producer:
        real = TransactionProducer.send

        async def stored_less_safely(self, message, **arguments):
            result = await real(self, message, **arguments)
            return type(result)(
                SendStatus.FLUSH_DISK_TIMEOUT, *[getattr(result, name) for name in FIELDS[1:]]
            )

        monkeypatch.setattr(TransactionProducer, "send", stored_less_safely)
        result = await producer.send_in_transaction(
            Message("orders", b"a"), executor=lambda message, argument: ran.append(message.body)
        )
        assert result.state is ROLLBACK
        assert result.confirmed
        with pytest.raises(SendFailed, match="FLUSH_DISK_TIMEOUT"):
            async with producer.transaction(Message("orders", b"b")):
                ran.append(b"b")
    assert ran == []
    assert await bodies(cluster) == []
    assert info(cluster)["transactionsRolledBack"] == 2


FIELDS = ("status", "message_id", "offset_message_id", "queue", "queue_offset", "transaction_id")


async def test_running_local_work_is_not_decided_by_the_checker(cluster: LocalCluster) -> None:
    done = asyncio.Event()

    async def executor(message, argument):
        await done.wait()
        return COMMIT

    async with cluster.transaction_producer("PG", checker=no_checks, executor=executor) as producer:
        sending = asyncio.create_task(producer.send_in_transaction(Message("orders", b"slow")))
        await wait_until(lambda: info(cluster)["openTransactions"] == 1, "the half message is stored")
        await cluster.advance_clock(70)
        await wait_until(lambda: info(cluster)["transactionChecksSent"] >= 1, "the check was sent")
        done.set()
        assert (await sending).confirmed
    assert await bodies(cluster) == [b"slow"]


async def test_what_cannot_be_a_transaction_message_is_refused_by_the_client(cluster: LocalCluster) -> None:
    async with cluster.transaction_producer("PG", checker=no_checks) as producer:
        for message in (
            Message("orders", b"", delay_level=3),
            Message("orders", b"", properties={"TIMER_DELAY_MS": "5"}),
            Message("orders", b"", wait_store_ok=False),
        ):
            with pytest.raises(UsageError, match="transaction message"):
                await producer.send_in_transaction(message, executor=lambda message, argument: COMMIT)
        with pytest.raises(UsageError, match="executor"):
            await producer.send_in_transaction(Message("orders", b""))
        # It is a producer like any other, too.
        assert (await producer.send(Message("orders", b"plain"))).status is SendStatus.SEND_OK
    assert await bodies(cluster) == [b"plain"]


async def test_what_an_operator_decided_is_final_for_the_producer_whose_block_still_runs(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.transaction_producer(
        "PG", checker=lambda message: TransactionState.UNKNOWN
    ) as producer:
        async with producer.transaction(Message("orders", b"order")) as transaction, cluster.admin() as admin:
            await admin.resolve_transaction(transaction.transaction_id, "commit")
            transaction.rollback()
        assert not transaction.result.confirmed
        assert "the broker refused ROLLBACK" in caplog.text
        assert "was committed before" in caplog.text


async def test_open_transactions_survive_a_kill_and_decided_ones_stay_decided(cluster: LocalCluster) -> None:
    async with cluster.transaction_producer("PG", checker=no_checks) as producer:
        for number, state in enumerate((COMMIT, ROLLBACK, UNKNOWN)):
            await producer.send_in_transaction(
                Message("orders", b"%d" % number), executor=lambda message, argument, state=state: state
            )
        await cluster.kill_broker()
    await cluster.start_broker()
    assert info(cluster)["openTransactions"] == 1
    async with cluster.transaction_producer("PG", checker=lambda message: COMMIT) as producer:
        await producer.queues("orders")
        await cluster.advance_clock(1)
        await wait_until(lambda: len(cluster.broker().producers.members("PG")) == 1, "the broker knows it")
        await cluster.advance_clock(60)
        await wait_until(lambda: info(cluster)["openTransactions"] == 0, "the check was answered")
    assert await bodies(cluster) == [b"0", b"2"]


async def test_a_blocking_sync_checker_delays_no_other_check(cluster: LocalCluster) -> None:
    """It runs in a thread: the producer sends on, and is answered, while the checker waits."""
    begun, may_end = threading.Event(), threading.Event()
    names: list[str] = []

    def checker(message) -> TransactionState:
        names.append(threading.current_thread().name)
        begun.set()
        may_end.wait()
        return TransactionState.COMMIT

    try:
        async with cluster.transaction_producer("payers", checker=checker) as producer:
            async with producer.transaction(Message("orders", b"one")) as transaction:
                transaction.leave_open()
            await cluster.advance_clock(70)
            await wait_until(begun.is_set, "the checker is called")
            for _ in range(3):
                await producer.send(Message("orders", b"beside"))
            assert names[0].startswith("aerobee-checker-payers")
            may_end.set()
            await wait_until(lambda: cluster.broker().store.max_offset("orders", 0) == 4, "it is committed")
            assert (await bodies(cluster))[-1] == b"one"
    finally:
        may_end.set()
