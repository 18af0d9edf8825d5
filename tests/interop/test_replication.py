"""A slave of one product behind a master of the other, in classic mode, while messages flow.

What must hold: the bytes of both logs are the same, from the first file on; the slave serves what it has when the master was
killed; the master returns, and the slave continues.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
import threading
from collections.abc import Iterator

import pytest

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
)
from aerobee.message import Message
from tests.interop.conftest import targets
from tests.interop.replica_processes import Slave, check_same, log_end
from tests.interop.rocketmq import (
    NEXT,
    Broker,
    Driver,
    JavaClient,
    NameServer,
    call,
    commit_offset,
    cpp_consume,
)
from tests.interop.store_contents import QUEUES, Sent
from tests.waiting import wait_for, wait_until

PAIRS = {
    "aerobee": [("aerobee", "rocketmq"), ("rocketmq", "aerobee"), ("aerobee", NEXT), (NEXT, "aerobee")],
    "rocketmq": [("rocketmq", "rocketmq")],
}


@pytest.fixture(scope="module")
def namesrv(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = NameServer("aerobee", tmp_path_factory.mktemp("replication-namesrv"))
    server.start()
    yield server.address
    server.kill()


def knows(broker: Broker, topic: str) -> bool:
    header, _ = call(broker.address, 351, {"topic": topic})
    return int(header["code"]) == 0


@pytest.mark.parametrize(
    ("master_kind", "slave_kind"), [pair for target in targets() for pair in PAIRS[target]]
)
def test_a_slave_follows_a_master_of_the_other_product(
    driver: Driver, namesrv: str, topic: str, tmp_path: pathlib.Path, master_kind: str, slave_kind: str
) -> None:
    name = driver.unique("broker-ha-")
    master = Broker(master_kind, tmp_path / "master", namesrv, brokerName=name, brokerRole="ASYNC_MASTER")
    slave = Slave(
        slave_kind, tmp_path / "slave", namesrv,
        brokerName=name, brokerRole="SLAVE", brokerId="1", slaveReadEnable="true",
    )  # fmt: skip
    group = driver.unique("CG_ha")
    sent: list[Sent] = []
    try:
        master.start()
        admin = ("-b", master.address, "-t", topic, "-r", str(QUEUES), "-w", str(QUEUES))
        assert "success" in driver.admin(namesrv, "updateTopic", *admin)
        with driver.producer(namesrv) as producer:
            sent += send_to(producer, topic, name, "before", 300)
            assert log_end(master) > 1 << 20, "the log has one file only"
            flow = Flow(producer, topic, name)
            slave.start()
            wait_for("the slave to come near", lambda: log_end(slave) > log_end(master) - 100_000 > 0, 60)
            sent += flow.stop()
            check_same(master, slave)
            sent += send_to(producer, topic, name, "after", 20)
            check_same(master, slave)
        with driver.pull(namesrv, group=group) as puller:
            commit_offset(puller, {"topic": topic, "broker": name, "queue": 0}, 3)
            wait_for("the topic at the slave", lambda: knows(slave, topic), 100)
        master.kill()
        with driver.pull(namesrv, group=group) as puller:
            for queue in range(QUEUES):
                expected = sorted((each.offset, each.body) for each in sent if each.queue == queue)
                found = [(each["offset"], each["body"]) for each in read(puller, topic, name, queue)]
                assert found == expected
        # The C++ client and ours, too, go to the slave.
        bodies = sorted(each.body for each in sent)
        assert sorted(asyncio.run(read_by_us(namesrv, topic, driver.unique("CG_ours"), len(sent)))) == bodies
        told = cpp_consume(namesrv, topic, driver.unique("CG_cpp"), len(sent), tmp_path, timeout_s=120)
        assert sorted(each["body"] for each in told) == bodies
        master.start()
        with driver.producer(namesrv) as producer:
            send_to(producer, topic, name, "again", 20)
        check_same(master, slave)
    finally:
        master.kill()
        slave.kill()


def test_a_slave_of_rocketmq_far_behind_takes_large_frames(
    driver: Driver, namesrv: str, topic: str, tmp_path: pathlib.Path
) -> None:
    """Frames of 1 MiB, from the files to the socket, into the 4 MiB that it accepts."""
    files = {"mappedFileSizeCommitLog": str(8 << 20), "brokerName": driver.unique("broker-ha-")}
    master = Broker("aerobee", tmp_path / "master", namesrv, brokerRole="ASYNC_MASTER", **files)
    slave = Slave("rocketmq", tmp_path / "slave", namesrv, brokerRole="SLAVE", brokerId="1", **files)
    try:
        master.start()
        asyncio.run(fill(namesrv, topic, 28))
        assert log_end(master) > 3 * (8 << 20)
        slave.start()
        check_same(master, slave)
        asyncio.run(fill(namesrv, topic, 1))
        check_same(master, slave)
    finally:
        master.kill()
        slave.kill()


async def fill(namesrv: str, topic: str, count: int) -> None:
    """Send messages of a MiB."""
    config = ProducerConfig(compress_over_bytes=1 << 30, send_timeout_s=60.0)
    async with Producer(namesrv, "PG_fill", config=config) as producer:
        for number in range(count):
            await producer.send(Message(topic, random.Random(number).randbytes(1 << 20)))


async def read_by_us(namesrv: str, topic: str, group: str, count: int) -> set[str]:
    """The bodies that our push consumer gets, until there are as many as were sent."""
    found: set[str] = set()

    async def handle(message: ReceivedMessage) -> None:
        found.add(message.body.decode())

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(namesrv, group, subscriptions={topic: "*"}, handler=handle, config=config):
        await wait_until(lambda: len(found) >= count, "everything from the slave", timeout_s=120)
    return found


def read(puller: JavaClient, topic: str, broker: str, queue: int) -> list[dict[str, object]]:
    """Everything of one queue, from whichever broker of the name is there."""
    messages: list[dict[str, object]] = []
    offset = 0
    while True:
        page = puller.call("pull", topic=topic, broker=broker, queue=queue, offset=offset)
        messages += page["messages"]
        offset = page["next"]
        if offset >= page["max"]:
            return messages


def send_to(producer: JavaClient, topic: str, broker: str, label: str, count: int) -> list[Sent]:
    sent = []
    for number in range(count):
        noise = (
            random.Random(number).randbytes(number * 97 % 6_000).hex()
        )  # nothing that a client would compress away
        body = f"{label} {number} ünï {noise}"
        message = {
            "topic": topic, "body": body, "keys": f"{label}-{number}", "tags": "TagA", "queue": number % QUEUES,
            "broker": broker,
        }  # fmt: skip
        (result,) = producer.send([message])
        assert result["status"] == "SEND_OK"
        sent.append(Sent(body, f"{label}-{number}", number % QUEUES, result["offset"], "", ""))
    return sent


class Flow:
    """Sends in a thread until it is stopped."""

    def __init__(self, producer: JavaClient, topic: str, broker: str) -> None:
        self._is_over = threading.Event()
        self._sent: list[Sent] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(producer, topic, broker))
        self._thread.start()

    def _run(self, producer: JavaClient, topic: str, broker: str) -> None:
        number = 0
        try:
            while not self._is_over.is_set():
                self._sent += send_to(producer, topic, broker, f"flow{number}", 4)
                number += 1
                self._is_over.wait(0.02)
        except BaseException as error:
            self._errors.append(error)

    def stop(self) -> list[Sent]:
        self._is_over.set()
        self._thread.join(60)
        assert not self._errors, self._errors
        return self._sent
