"""Raw requests of sends and pops."""

from __future__ import annotations

import time
from typing import Any

from tests.interop.rocketmq import Cluster, Driver, call

POP, ACK, CHANGE_INVISIBLE, NOTIFICATION = 200_050, 200_051, 200_053, 200_054
FOUND, NOTHING = 0, 210


def pop(
    cluster: Cluster, topic: str, group: str, *, born: str | None, **more: object
) -> tuple[int, dict[str, str]]:
    """(code, reply's fields) of a pop of one message."""
    ext: dict[str, Any] = {
        "consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "20000",
        "pollTime": "1000", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    ext |= {} if born is None else {"bornTime": born}
    header, _ = call(cluster.broker.address, POP, ext | more)
    return header["code"], header.get("extFields") or {}


def has_message(cluster: Cluster, topic: str, group: str, **more: object) -> tuple[str, float]:
    """(hasMsg, seconds that the answer took)."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": "-1", "pollTime": "0"}
    begin = time.monotonic()
    header, _ = call(cluster.broker.address, NOTIFICATION, ext | more)
    assert header["code"] == 0, header
    return header["extFields"]["hasMsg"], time.monotonic() - begin


def send(driver: Driver, cluster: Cluster, topic: str, count: int) -> None:
    with driver.producer(cluster.namesrv) as producer:
        producer.send([{"topic": topic, "body": f"m{number}"} for number in range(count)])
