"""Slaves of either product as processes."""

from __future__ import annotations

import json

from tests.interop.rocketmq import Broker, call
from tests.waiting import wait_for


class Slave(Broker):
    """A broker that is ready when its name is routed to it as number 1."""

    def is_ready(self) -> bool:
        try:
            header, body = call(
                self.namesrv, 105, {"topic": self.broker_name, "acceptStandardJsonOnly": "true"}
            )
            call(self.address, 28, {})
        except OSError:
            return False
        return header["code"] == 0 and any(
            data["brokerAddrs"].get("1") == self.address for data in json.loads(body)["brokerDatas"]
        )


def log_end(broker: Broker) -> int:
    """Where its log ends. RocketMQ's answers 28 without a body while it has just started, or not at all for some seconds."""

    def figures() -> dict[str, str] | None:
        try:
            _, body = call(broker.address, 28, {})
        except TimeoutError:
            return None
        table: dict[str, str] | None = json.loads(body)["table"] if body else None
        return table

    return int(wait_for(f"the figures of {broker.name}", figures, 60)["commitLogMaxOffset"])


def log_bytes(broker: Broker, end: int) -> dict[str, bytes]:
    """The log's files by name, up to `end`."""
    files: dict[str, bytes] = {}
    for path in sorted((broker.store / "commitlog").iterdir()):
        if path.name.isdecimal() and int(path.name) < end:
            files[path.name] = path.read_bytes()[: end - int(path.name)]
    return files


def check_same(master: Broker, slave: Broker) -> int:
    """Wait until the slave has everything, and compare. Returns the log's end."""
    wait_for("the slave to have the whole log", lambda: log_end(slave) == log_end(master), 60)
    end = log_end(master)
    mine, theirs = log_bytes(master, end), log_bytes(slave, end)
    assert mine.keys() == theirs.keys()
    for name, data in mine.items():
        assert data == theirs[name], f"{name} differs"
    return end
