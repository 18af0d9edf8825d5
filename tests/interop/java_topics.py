"""Topics, groups and numbered messages for the Java client."""

from __future__ import annotations

from typing import Any

from tests.interop.rocketmq import Cluster, Driver


def make_topic(driver: Driver, cluster: Cluster, topic: str, queues: int = 4, **flags: str) -> None:
    extra = [part for name, value in flags.items() for part in (f"-{name}", value)]
    out = driver.admin(
        cluster.namesrv,
        "updateTopic",
        "-c",
        "DefaultCluster",
        "-t",
        topic,
        "-r",
        str(queues),
        "-w",
        str(queues),
        *extra,
    )
    assert "success" in out


def make_group(driver: Driver, cluster: Cluster, group: str) -> None:
    assert "success" in driver.admin(cluster.namesrv, "updateSubGroup", "-c", "DefaultCluster", "-g", group)


def numbered(topic: str, count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"topic": topic, "body": f"m{number}", **fields} for number in range(count)]


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return sorted(message["body"] for message in messages)
