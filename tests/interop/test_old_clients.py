"""RocketMQ's Go client v2 and an old Java client (4.9.8): the first send to a topic that does not exist yet, a push consumer with
a message that fails once, transactions. Each program runs at RocketMQ's broker as well (AEROBEE_INTEROP_TARGET=both)."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.rocketmq import GO_CLIENT, JAVA, OLD_CLASS_PATH, Cluster, Driver

CLIENTS = {"go": [str(GO_CLIENT)], "java-4.9.8": [*JAVA, "-cp", OLD_CLASS_PATH, "OldClient"]}


@pytest.fixture(scope="module")
def transacting(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that asks soon for what became of a transaction."""
    cluster = Cluster(
        kind,
        tmp_path_factory.mktemp(f"old-{kind}"),
        transactionCheckInterval="3000",
        transactionTimeOut="5000",
    )
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def run(client: str, root: pathlib.Path, cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    """The lines that a client printed."""
    result = subprocess.run(
        [*CLIENTS[client], cluster.namesrv, *arguments],
        capture_output=True, timeout=150, env={**os.environ, "HOME": str(root)}, cwd=root, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith(b"{")]
    assert result.returncode == 0, (lines, result.stderr.decode()[-2000:])
    return lines


@pytest.mark.parametrize("client", CLIENTS)
def test_the_first_send_makes_the_topic_and_a_push_consumer_gets_everything(
    transacting: Cluster, driver: Driver, tmp_path: pathlib.Path, client: str
) -> None:
    topic, group = driver.unique("TopicOfOldClients_"), driver.unique("CG_old_")
    sent = run(client, tmp_path, transacting, topic, driver.unique("PG_old_"), "first", "8")
    assert [line["status"] for line in sent] == [0] * 8
    got = run(client, tmp_path, transacting, topic, group, "consume", "9")
    bodies = [f"m{number}" for number in range(7)]
    assert sorted((line["body"], line["attempt"]) for line in got) == [
        ("again", 0), ("again", 1), *((body, 0) for body in bodies),
    ]  # fmt: skip
    assert {line["body"]: (line["tag"], line["keys"]) for line in got}["m3"] == ("go", "key3")


@pytest.mark.parametrize("client", CLIENTS)
def test_transactions_are_committed_rolled_back_and_checked(
    transacting: Cluster, driver: Driver, tmp_path: pathlib.Path, client: str
) -> None:
    topic, group = driver.unique("TopicOfOldClients_"), driver.unique("CG_old_")
    told = run(client, tmp_path, transacting, topic, driver.unique("PG_old_"), "transact")
    assert "checked" in [line["checked"] for line in told]
    got = run(client, tmp_path, transacting, topic, group, "consume", "2")
    assert {line["body"] for line in got} == {"commit", "checked"}
