"""Transactions between the products: the Java client at our broker, our client at a real one, stores handed over."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee import Message, TransactionProducer, TransactionState
from aerobee.client.base.received import ReceivedMessage
from tests.interop.java_topics import make_topic
from tests.interop.rocketmq import Broker, Cluster, Driver, DriverError, JavaClient, NameServer
from tests.waiting import wait_for

# A first check after one second, another every second: RocketMQ's loop cannot do it faster.
QUICK = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionMetricFlushInterval": "1000",
}
COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"


@pytest.fixture(scope="module")
def quick(kind: str, peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of the product under test that checks quickly."""
    cluster = Cluster(kind, tmp_path_factory.mktemp(f"quick-{kind}"), **QUICK)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


class JavaProducer:
    """A TransactionMQProducer, while the block runs. It answers checks by body."""

    def __init__(
        self, driver: Driver, namesrv: str, group: str, topic: str, answers: dict[str, str] | None = None
    ) -> None:
        self._driver = driver
        self._name = driver.unique("trans-")
        self._start = {"group": group, "namesrv": namesrv, "topic": topic, "answers": answers or {}}
        self._topic = topic

    def __enter__(self) -> JavaProducer:
        self._driver.call("trans.start", name=self._name, **self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.call("trans.stop", name=self._name)

    def send(self, body: str, state: str, **options: Any) -> dict[str, Any]:
        result: dict[str, Any] = self._driver.call(
            "trans.send", name=self._name, topic=self._topic, body=body, state=state, **options
        )
        assert result["status"] == "SEND_OK"
        return result

    def checks(self) -> list[dict[str, Any]]:
        checks: list[dict[str, Any]] = self._driver.call("trans.checks", name=self._name)
        return checks

    def wait_checked(self, *bodies: str) -> None:
        wait_for(f"checks of {bodies}", lambda: {check["body"] for check in self.checks()} >= set(bodies))


def received(consumer: JavaClient, *bodies: str, once: bool = True) -> None:
    """Wait for these messages; nothing else may have come. RocketMQ's broker may deliver one twice (`once`)."""
    wait_for(f"{bodies}", lambda: {message["body"] for message in consumer.received()} >= set(bodies))
    found = [message["body"] for message in consumer.received()]
    assert sorted(found if once else set(found)) == sorted(bodies)


def test_java_commits_rolls_back_and_is_asked(quick: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, quick, topic)
    answers = {"asked, commit": COMMIT, "asked, roll back": ROLLBACK}
    with (
        JavaProducer(driver, quick.namesrv, f"PG_{topic}", topic, answers) as producer,
        driver.push(quick.namesrv, topic) as consumer,
    ):
        committed = producer.send("commit", COMMIT, keys="k1")
        producer.send("roll back", ROLLBACK)
        asked = producer.send("asked, commit", UNKNOWN)
        producer.send("asked, roll back", UNKNOWN)
        with pytest.raises(DriverError, match="do not support delayed delivery"):
            producer.send("delayed", COMMIT, delay_level=18)
        producer.send("in time", COMMIT, immunity_s="60")
        producer.wait_checked("asked, commit", "asked, roll back")
        received(consumer, "commit", "asked, commit", "in time", once=quick.kind == "aerobee")
        for check in producer.checks():
            assert check["topic"] == topic
            assert check["times"] == "1" or quick.kind == "rocketmq"
        assert asked["transaction_id"] in {check["transaction_id"] for check in producer.checks()}
        (message,) = [each for each in consumer.received() if each["body"] == "commit"]
        assert message["msg_id"] == committed["transaction_id"]
        assert message["properties"]["TRAN_MSG"] == "true"
        assert "REAL_TOPIC" not in message["properties"]


def test_another_java_producer_of_the_group_is_asked_when_the_first_is_gone(
    quick: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, quick, topic)
    group = f"PG_{topic}"
    with JavaProducer(driver, quick.namesrv, group, topic) as first:
        sent = first.send("orphan", UNKNOWN)
    with (
        JavaProducer(driver, quick.namesrv, group, topic, {"orphan": COMMIT}) as second,
        driver.push(quick.namesrv, topic) as consumer,
    ):
        second.wait_checked("orphan")
        received(consumer, "orphan", once=quick.kind == "aerobee")
        assert second.checks()[0]["transaction_id"] == sent["transaction_id"]


def test_java_is_asked_again_until_it_knows(quick: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, quick, topic)
    with JavaProducer(driver, quick.namesrv, f"PG_{topic}", topic) as producer:
        producer.send("never known", UNKNOWN)
        wait_for("three checks", lambda: len(producer.checks()) >= 3)
        assert [check["times"] for check in producer.checks()[:3]] == ["1", "2", "3"]


# --- a store that goes from ours to a real broker and back; our client at the real broker meanwhile


class Handover:
    """One store directory and one NameServer; brokers of either product follow each other on it."""

    def __init__(self, driver: Driver, root: pathlib.Path) -> None:
        self.driver = driver
        self.root = root
        self.nameserver = NameServer("aerobee", root / "nameserver")
        self.nameserver.start()
        self.namesrv = self.nameserver.address
        self.topic = driver.unique("Handover")
        self.group = f"PG_{self.topic}"
        self.broker: Broker | None = None
        self.delivered: list[str] = []

    def start(self, product: str) -> None:
        port = self.broker.port if self.broker is not None else None
        self.broker = Broker(
            product, self.root / f"{product}-{len(self.delivered)}", self.namesrv, store=self.root / "store",
            port=port, **QUICK,
        )  # fmt: skip
        self.broker.start()

    def leave(self, label: str) -> None:
        """One transaction of each kind; the producer is gone before it can be asked about the open one."""
        with JavaProducer(self.driver, self.namesrv, self.group, self.topic) as producer:
            producer.send(f"commit {label}", COMMIT)
            producer.send(f"roll back {label}", ROLLBACK)
            producer.send(f"open {label}", UNKNOWN, immunity_s="6")
        self.delivered.append(f"commit {label}")

    def settle(self, label: str) -> set[str]:
        """A producer answers; returns the checked messages."""
        answers = {f"open {label}": COMMIT, f"roll back {label}": ROLLBACK}
        with JavaProducer(self.driver, self.namesrv, self.group, self.topic, answers) as producer:
            producer.wait_checked(f"open {label}")
            self.delivered.append(f"open {label}")
            with self.driver.push(self.namesrv, self.topic) as consumer:
                received(consumer, *self.delivered, once=False)
            return {check["body"] for check in producer.checks()}

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.stop()

    def close(self) -> None:
        self.stop()
        self.nameserver.stop()


@pytest.fixture(scope="module")
def handover(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handover]:
    """A real broker on a store in which ours left one transaction open, one committed, one rolled back."""
    handover = Handover(driver, tmp_path_factory.mktemp("handover"))
    try:
        handover.start("aerobee")
        out = driver.admin(
            handover.namesrv,
            "updateTopic",
            "-c",
            "DefaultCluster",
            "-t",
            handover.topic,
            "-r",
            "2",
            "-w",
            "2",
        )
        assert "success" in out
        handover.leave("ours")
        handover.stop()
        handover.start("rocketmq")
        yield handover
    finally:
        handover.close()


def test_a_real_broker_asks_about_what_ours_left_open_and_nothing_else(handover: Handover) -> None:
    assert handover.settle("ours") == {"open ours"}


async def test_our_producer_at_a_real_broker(handover: Handover, driver: Driver, topic: str) -> None:
    out = await asyncio.to_thread(
        driver.admin,
        handover.namesrv,
        "updateTopic",
        "-c",
        "DefaultCluster",
        "-t",
        topic,
        "-r",
        "2",
        "-w",
        "2",
    )
    assert "success" in out
    asked: list[tuple[str, str]] = []

    async def checker(message: ReceivedMessage) -> TransactionState:
        asked.append((message.body.decode(), message.properties["TRANSACTION_CHECK_TIMES"]))
        return TransactionState.ROLLBACK if b"roll back" in message.body else TransactionState.COMMIT

    async with TransactionProducer(handover.namesrv, f"PG_{topic}", checker=checker) as producer:
        async with producer.transaction(Message(topic, b"commit", tag="x", keys=("k1",))) as transaction:
            pass
        assert transaction.result is not None
        assert transaction.result.confirmed
        async with producer.transaction(Message(topic, b"never")) as transaction:
            transaction.rollback()
        for body in (b"asked, commit", b"asked, roll back"):
            result = await producer.send_in_transaction(Message(topic, body), executor=lambda *_: None)
            assert result.state is TransactionState.UNKNOWN
        await asyncio.to_thread(
            wait_for,
            "both checks",
            lambda: {body for body, _ in asked} >= {"asked, commit", "asked, roll back"},
        )

        def look() -> None:
            with driver.push(handover.namesrv, topic) as consumer:
                received(consumer, "commit", "asked, commit", once=False)

        await asyncio.to_thread(look)
    assert asked[0][1] == "1"


def test_our_broker_finishes_rocketmqs_open_transactions(handover: Handover) -> None:
    handover.leave("theirs")
    handover.stop()
    handover.start("aerobee")
    # RocketMQ forgets a rollback that it made less than 3 s before it looked for transactions to ask about.
    asked = handover.settle("theirs")
    assert "open theirs" in asked
    assert asked <= {"open theirs", "roll back theirs"}
