"""docs/migration.md, step by step: its commands, run as they stand there, on the files that RocketMQ 5.5.0 was started with.

A Java producer sends and a Java consumer reads the whole time. Every message that was acknowledged arrives.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.interop.conftest import targets
from tests.interop.migration_steps import send_delayed
from tests.interop.replica_processes import Slave, check_same
from tests.interop.rocketmq import (
    AEROBEE,
    ROOT,
    Broker,
    Driver,
    DriverError,
    JavaClient,
    NameServer,
    Server,
    call,
    write_config,
)
from tests.waiting import wait_for

PAGE = ROOT / "docs" / "migration.md"
pytestmark = pytest.mark.skipif("aerobee" not in targets(), reason="exchanges RocketMQ for Aerobee")


def commands(step: int) -> list[str]:
    """What the page says to type in a step."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[step]
    assert section.startswith(f"{step}. ")
    return re.findall(r"^    \$ (.+)$", section, flags=re.MULTILINE)


class Flow:
    """Sends one message after the other until it is stopped; a failed send is repeated."""

    def __init__(self, producer: JavaClient, topic: str) -> None:
        self.acknowledged: list[str] = []
        self.failed_count = 0
        self._producer = producer
        self._topic = topic
        self._is_over = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._is_over.is_set():
                body = f"m{number}"
                try:
                    (result,) = self._producer.send([{"topic": self._topic, "body": body}])
                except DriverError:
                    self.failed_count += 1
                else:
                    assert result["status"] == "SEND_OK"
                    self.acknowledged.append(body)
                    number += 1
                self._is_over.wait(0.02)
        except BaseException as error:
            self._errors.append(error)

    def more(self) -> None:
        """Wait until messages are acknowledged that were sent from now on."""
        count = len(self.acknowledged)
        wait_for(
            "messages to be acknowledged", lambda: len(self.acknowledged) > count + 20 or self._errors, 120
        )
        assert not self._errors, self._errors

    def stop(self) -> list[str]:
        self._is_over.set()
        self._thread.join(120)
        assert not self._errors, self._errors
        return self.acknowledged


class Migration:
    """RocketMQ's NameServer, master and slave, and what the page's commands replace them with."""

    def __init__(self, root: pathlib.Path, name: str) -> None:
        self.nameserver = NameServer("rocketmq", root / "namesrv")
        namesrv = self.nameserver.address
        self.master = Broker("rocketmq", root / "master", namesrv, brokerName=name, brokerRole="ASYNC_MASTER")
        self.slave = Slave(
            "rocketmq", root / "slave", namesrv,
            brokerName=name, brokerRole="SLAVE", brokerId="1", slaveReadEnable="true",
        )  # fmt: skip

    @property
    def namesrv(self) -> str:
        return self.nameserver.address

    def start(self) -> None:
        for server in (self.nameserver, self.master, self.slave):
            server.start()

    def exchange(self, server: Server, file: str, command: str) -> None:
        """Stop RocketMQ's process; start Aerobee's with the page's command, from the same file on the same directory."""
        assert file in command
        server.stop()
        server.kind = "aerobee"
        write_config(server.root / file, server.config)  # type: ignore[attr-defined]
        server.command = lambda: [*AEROBEE, *shlex.split(command)[1:]]  # type: ignore[method-assign]
        server.start()

    def run_until_well(self, command: str, root: pathlib.Path) -> None:
        """As run(), again and again until it says that all is well, as the page says: continue when the slave has everything."""
        wait_for(f"`{command}` to end with 0", lambda: self._try(command, root).returncode == 0, 180)
        self.run(command, root)

    def run(self, command: str, root: pathlib.Path) -> str:
        """A command of the page that looks at the cluster; returns what it prints."""
        result = self._try(command, root)
        assert result.returncode == 0, f"{command}: {result.stdout.decode()}{result.stderr.decode()}"
        return result.stdout.decode()

    def _try(self, command: str, root: pathlib.Path) -> subprocess.CompletedProcess[bytes]:
        arguments = shlex.split(command.replace("localhost:9876", self.namesrv))[1:]
        return subprocess.run(
            [*AEROBEE, *arguments], capture_output=True, timeout=120, cwd=root, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(root), "COLUMNS": "200"},
        )  # fmt: skip

    def kill(self) -> None:
        for server in (self.slave, self.master, self.nameserver):
            server.kill()


@pytest.fixture
def migration(driver: Driver, peers: None, tmp_path: pathlib.Path) -> Iterator[Migration]:
    migration = Migration(tmp_path, driver.unique("broker-old-"))
    try:
        yield migration
    finally:
        migration.kill()


def test_every_step_of_the_page_on_a_cluster_at_work(
    migration: Migration, driver: Driver, topic: str, tmp_path: pathlib.Path
) -> None:
    migration.start()
    master, slave, name = migration.master, migration.slave, migration.master.broker_name
    admin = ("-b", master.address, "-t", topic, "-r", "4", "-w", "4")
    assert "success" in driver.admin(migration.namesrv, "updateTopic", *admin)
    # RocketMQ's slave learns of a topic within a minute, and clients cannot read an unknown topic there.
    wait_for(
        "the topic at the slave", lambda: call(slave.address, 351, {"topic": topic})[0]["code"] == 0, 100
    )
    with driver.producer(migration.namesrv) as producer, driver.push(migration.namesrv, topic) as consumer:
        send_delayed(master, topic)
        flow = Flow(producer, topic)
        try:
            flow.more()
            (look,) = commands(1)
            assert name in migration.run(look, tmp_path)

            start, look = commands(2)
            migration.exchange(migration.nameserver, "namesrv.conf", start)
            wait_for("both brokers", lambda: migration.run(look, tmp_path).count(name) >= 2, 120)
            flow.more()

            start, look = commands(3)
            migration.exchange(slave, "broker-a-s.conf", start)
            migration.run_until_well(look, tmp_path)
            flow.more()
            (found,) = (each for each in commands(3) if "doctor" in each)
            assert found == look

            (start,) = commands(4)
            migration.exchange(master, "broker-a.conf", start)
            flow.more()
            (look,) = commands(5)
            migration.run_until_well(look, tmp_path)
        finally:
            sent = flow.stop()
        expected = {*sent, "late"}
        wait_for(
            "every message to arrive", lambda: expected <= {each["body"] for each in consumer.received()}, 180
        )
        print(f"\n{len(sent)} messages acknowledged, {flow.failed_count} sends repeated")
    check_same(master, slave)
