"""Groups of controller mode with parts of both products: who is master, failover, rejoin, mqadmin.

Each combination is (controller, first broker, second broker). The first one is killed with -9, the second one takes over, the first
one comes back behind it; at the end both logs are the same bytes.
"""

from __future__ import annotations

import json
import pathlib
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.rocketmq import NEXT, Broker, Controller, Driver, NameServer, call, routed_brokers
from tests.waiting import wait_for

NAME = "broker-g"
TOPIC = "TopicGroup"


class Group:
    """A NameServer, one controller and two brokers of one name."""

    def __init__(self, root: pathlib.Path, controller: str, first: str, second: str) -> None:
        self.root = root
        self.namesrv = NameServer("aerobee", root)
        self.controller = Controller(controller, root)
        self.brokers = [self._broker(first, "one"), self._broker(second, "two")]

    def _broker(self, kind: str, directory: str) -> Broker:
        broker = Broker(
            kind,
            self.root / directory,
            self.namesrv.address,
            brokerName=NAME,
            enableControllerMode="true",
            controllerAddr=self.controller.address,
            allAckInSyncStateSet="true",
            inSyncReplicas="1",
            slaveReadEnable="false",
        )
        # A slave has no separate route to wait for.
        broker.is_ready = lambda: self._answers(broker)  # type: ignore[method-assign]
        return broker

    def _answers(self, broker: Broker) -> bool:
        try:
            call(broker.address, 28, {})
        except OSError:
            return False
        return True

    def start(self) -> Group:
        self.namesrv.start()
        self.controller.start()
        first, second = self.brokers
        first.start()
        self.wait_master(first)
        second.start()
        self.wait_set(2)
        return self

    def stop(self) -> None:
        for server in (*self.brokers, self.controller, self.namesrv):
            server.stop()

    def wait_master(self, broker: Broker) -> None:
        wait_for(f"{broker.name} to be master", lambda: self.master_address() == broker.address, 90)

    def master_address(self) -> str | None:
        return routed_brokers(self.namesrv.address, NAME).get(NAME)

    def table(self) -> dict[str, Any]:
        _, body = call(self.controller.address, 1006, {}, json.dumps([NAME]).encode())
        found: dict[str, Any] = json.loads(body)["replicasInfoTable"][NAME]
        return found

    def wait_set(self, size: int) -> None:
        wait_for(f"{size} brokers to be in sync", lambda: len(self.table()["inSyncReplicas"]) == size, 90)

    def send(self, broker: Broker, count: int, text: str) -> None:
        for number in range(count):
            ext = {
                "a": "PG", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": str(int(time.time() * 1000)),
                "h": "0", "i": f"UNIQ_KEY\x01{text}{number}\x02", "j": "0", "k": "false", "m": "false",
            }  # fmt: skip

            def sent(ext: dict[str, str] = ext, number: int = number) -> bool:
                try:
                    header, _ = call(broker.address, 310, ext, f"{text} {number}".encode())
                except OSError:
                    return False
                return header["code"] == 0

            wait_for(f"message {number} to be taken by {broker.name}", sent, 60)

    def log_end(self, broker: Broker) -> int:
        _, body = call(broker.address, 28, {})
        return int(json.loads(body)["table"]["commitLogMaxOffset"])

    def max_offset(self, broker: Broker) -> int:
        header, _ = call(broker.address, 30, {"topic": TOPIC, "queueId": "0"})
        return int(header["extFields"]["offset"])

    def log_bytes(self, broker: Broker, end: int) -> bytes:
        return b"".join(
            path.read_bytes()
            for path in sorted((broker.store / "commitlog").iterdir())
            if path.name.isdigit()
        )[:end]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    return tmp_path


@pytest.mark.parametrize(
    ("controller", "first", "second"),
    [
        ("aerobee", "rocketmq", "rocketmq"),
        ("aerobee", "aerobee", "rocketmq"),
        ("aerobee", "rocketmq", "aerobee"),
        ("rocketmq", "aerobee", "aerobee"),
        ("rocketmq", "aerobee", "rocketmq"),
        ("rocketmq", "rocketmq", "aerobee"),
        (NEXT, "aerobee", NEXT),
        ("aerobee", NEXT, "aerobee"),
    ],
)
def test_a_group_fails_over_and_the_old_master_rejoins(
    root: pathlib.Path, controller: str, first: str, second: str, peers: None
) -> None:
    group = Group(root, controller, first, second)
    try:
        group.start()
        one, two = group.brokers
        group.send(one, 20, "first")
        one.kill()
        group.wait_master(two)
        assert group.max_offset(two) >= 20
        group.send(two, 20, "second")
        one.start()
        group.wait_set(2)
        group.send(two, 5, "third")
        wait_for("one log", lambda: group.log_end(one) == group.log_end(two), 60)
        end = group.log_end(two)
        wait_for("the queue of the slave", lambda: group.max_offset(one) == group.max_offset(two), 60)
        for broker in group.brokers:
            broker.stop()
        assert group.log_bytes(one, end) == group.log_bytes(two, end)
        for broker in group.brokers:
            lines = (broker.store / "epochFileCheckpoint").read_text().splitlines()
            assert len(lines) == int(lines[0]) + 2
    finally:
        group.stop()


def test_mqadmin_shows_and_changes_a_group(root: pathlib.Path, driver: Driver) -> None:
    group = Group(root, "aerobee", "aerobee", "aerobee")
    try:
        group.start()
        one, two = group.brokers
        at, ns = group.controller.address, group.namesrv.address
        shown = driver.admin(ns, "getControllerMetaData", "-a", at)
        assert f"#ControllerLeaderAddress\t{at}" in shown, shown
        shown = driver.admin(ns, "getSyncStateSet", "-a", at, "-b", NAME)
        assert "#brokerName\tbroker-g" in shown, shown
        assert shown.count("InSyncReplica:") >= 2, shown
        shown = driver.admin(ns, "getBrokerEpoch", "-n", ns, "-b", NAME)
        assert "#Epoch: EpochEntry{epoch=1, startOffset=0" in shown, shown
        shown = driver.admin(ns, "getControllerConfig", "-a", at)
        assert "controllerDLegerGroup" in shown, shown
        driver.admin(
            ns, "updateControllerConfig", "-a", at, "-k", "scanNotActiveBrokerInterval", "-v", "4000"
        )
        assert "4000" in driver.admin(ns, "getControllerConfig", "-a", at)
        shown = driver.admin(
            ns, "electMaster", "-a", at, "-b", "2", "-n", ns, "-c", one.config["brokerClusterName"], "-bn", NAME,
            with_errors=True,
        )  # fmt: skip
        group.wait_master(two)
        assert two.address in shown, shown
        group.wait_set(2)
        one.stop()
        group.wait_set(1)
        shown = driver.admin(
            ns, "cleanBrokerMetadata", "-a", at, "-b", "1", "-bn", NAME, "-c", one.config["brokerClusterName"],
            with_errors=True,
        )  # fmt: skip
        assert "success" in shown, shown
        assert not group.table()["notInSyncReplicas"]
    finally:
        group.stop()


def shape(text: str) -> list[str]:
    """What a command prints, without what differs from run to run: addresses, ids that come first, times and sizes."""
    text = re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS", text)
    text = re.sub(r"\d{2}:\d{2}:\d{2}|\d{4}-\d{2}-\d{2}", "TIME", text)
    lines = [re.sub(r"\d+(\.\d+)?", "N", line).strip() for line in text.splitlines()]
    return sorted(line for line in lines if line)


def test_mqadmin_prints_of_our_groups_what_it_prints_of_rocketmqs(root: pathlib.Path, driver: Driver) -> None:
    """The commands that look at replication, word for word but for numbers and addresses."""
    shown: dict[str, dict[str, list[str]]] = {}
    for kind in ("aerobee", "rocketmq"):
        group = Group(root / kind, kind, kind, kind)
        try:
            group.start()
            one, two = group.brokers
            group.send(one, 3, "first")
            wait_for("one log", lambda: group.log_end(one) == group.log_end(two), 60)  # noqa: B023
            at, ns = group.controller.address, group.namesrv.address
            commands = {
                "getControllerMetaData": ("-a", at),
                "getSyncStateSet": ("-a", at, "-b", NAME),
                "getBrokerEpoch": ("-n", ns, "-b", NAME),
                "haStatus": ("-n", ns, "-b", one.address),
                "haStatus of the slave": ("-n", ns, "-b", two.address),
            }
            shown[kind] = {
                name: shape(driver.admin(ns, name.split(" ")[0], *arguments))
                for name, arguments in commands.items()
            }
        finally:
            for server in (*group.brokers, group.controller, group.namesrv):
                server.kill()
    assert all(shown["rocketmq"].values())
    assert shown["aerobee"] == shown["rocketmq"]
