"""RocketMQ's Java clients at a slave of ours that acts as master, found through a NameServer of either product: ordered, POP, delay levels."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.interop.conftest import targets
from tests.interop.java_pops import JavaPops, use_pop
from tests.interop.migration_steps import send_delayed
from tests.interop.replica_processes import Slave, log_end
from tests.interop.rocketmq import Broker, Driver, NameServer, call, routed_brokers
from tests.waiting import wait_for

ACTING = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true"}
pytestmark = pytest.mark.skipif("aerobee" not in targets(), reason="the slave is Aerobee's")


class Group:
    """A master with its slave, and a master of another name, all ours; the NameServer is of one of the products."""

    def __init__(self, nameserver: str, root: pathlib.Path, name: str) -> None:
        self.nameserver = NameServer(
            nameserver, root / "namesrv", supportActingMaster="true", notifyMinBrokerIdChanged="true"
        )
        namesrv = self.nameserver.address
        self.master = Broker("aerobee", root / "master", namesrv, brokerName=name, **ACTING)
        self.slave = Slave(
            "aerobee", root / "slave", namesrv, brokerName=name, brokerRole="SLAVE", brokerId="1", **ACTING
        )
        self.other = Broker("aerobee", root / "other", namesrv, brokerName=f"{name}-other")

    @property
    def namesrv(self) -> str:
        return self.nameserver.address

    def start(self) -> None:
        for server in (self.nameserver, self.master, self.slave, self.other):
            server.start()

    def lose_master(self) -> None:
        wait_for("the slave to have everything", lambda: log_end(self.slave) == log_end(self.master), 60)
        self.master.kill()
        name = self.master.broker_name
        wait_for(
            "the slave to be shown as broker 0",
            lambda: routed_brokers(self.namesrv, name).get(name) == self.slave.address,
            60,
        )

    def kill(self) -> None:
        for server in (self.other, self.slave, self.master, self.nameserver):
            server.kill()


@pytest.fixture(params=["aerobee", "rocketmq"])
def group(
    request: pytest.FixtureRequest, driver: Driver, peers: None, tmp_path: pathlib.Path
) -> Iterator[Group]:
    group = Group(request.param, tmp_path, driver.unique("broker-act-"))
    try:
        group.start()
        yield group
    finally:
        group.kill()


def test_java_consumers_continue_at_the_acting_master(group: Group, driver: Driver, topic: str) -> None:
    admin = ("-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2")
    assert driver.admin(group.namesrv, "updateTopic", *admin).count("success") == 2
    name = group.master.broker_name
    wait_for(
        "the topic at the slave", lambda: call(group.slave.address, 351, {"topic": topic})[0]["code"] == 0, 60
    )
    wait_for("the route", lambda: len(routed_brokers(group.namesrv, topic)) == 2, 60)
    wanted = driver.unique("CG_pop")
    assert "success" in driver.admin(group.namesrv, "updateSubGroup", "-c", "DefaultCluster", "-g", wanted)
    use_pop(driver, group.namesrv, topic, wanted)
    wait_for("the mode at the slave", lambda: wanted.encode() in call(group.slave.address, 402, {})[1], 60)
    with driver.producer(group.namesrv) as producer:
        bodies = [f"m{number}" for number in range(40)]
        producer.send(
            [{"topic": topic, "body": body, "broker": name, "queue": n % 2} for n, body in enumerate(bodies)]
        )
    send_delayed(group.master, topic)
    group.lose_master()
    with driver.push(group.namesrv, topic, orderly=True) as consumer:
        wait_for(
            "everything, and the late one by way of the other broker",
            lambda: {each["body"] for each in consumer.received()} >= {*bodies, "late"},
            180,
        )
        received = consumer.received()
    (late,) = (each for each in received if each["body"] == "late")
    assert late["broker"] == group.other.broker_name
    for queue in range(2):
        own = [each["body"] for each in received if each["broker"] == name and each["queue"] == queue]
        assert own == bodies[queue::2], "the order of a queue"
    with JavaPops(driver, namesrv=group.namesrv, group=wanted, topic=topic) as pops:
        wait_for(
            "everything by POP", lambda: {each["body"] for each in pops.received(0, 1)} >= set(bodies), 120
        )
