"""RocketMQ's proxy 5.5.0 in front of a broker, and the official gRPC clients, Java and Python, behind it.

The clients' programs (java-grpc/GrpcScenarios.java, grpc/scenarios.py) run all scenarios once; each test looks at
one outcome. Run at RocketMQ's broker as well (AEROBEE_INTEROP_TARGET=both) the same outcomes are expected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.interop.rocketmq import Cluster, Driver, Proxy, call, grpc_scenarios

TYPES = {
    "fifo": "FIFO",
    "delay": "DELAY",
    "recall": "DELAY",
    "transaction": "TRANSACTION",
    "priority": "PRIORITY",
}
NUMBERED = [f"m{number}|1" for number in range(12)]
EXPECTED = {
    "push": "[" + ", ".join(sorted(NUMBERED)) + "]",
    "tags": "[m0, m2, m4, m6] then 0",
    "sql": "[m3, m5, m7] then 0",
    "retry": "[m0|1, m1|1, m1|2, m2|1]",
    "recall": "true [after]",
    "transaction": "[checked, commit] checked true",
    "deadletter": "[bad|1, bad|2] then [bad|1, bad|2]",
    "invisible": "[again|1, again|2]",
    "twopushes": "[" + ", ".join(f"m{number:02}|1" for number in range(40)) + "]",
}  # fmt: skip
OWN = {
    "java": {
        "simple": "["
        + ", ".join(f"m{i}|tag{i}|key{i},second|{{p=v{i}}}|true|1" for i in range(6))
        + "] then 0",
        "fifo": "{group0=[m0, m3, m6, m9, m12, m15], group1=[m1, m4, m7, m10, m13, m16], "
        "group2=[m2, m5, m8, m11, m14, m17]}",
        "delay": "[later|true|true]",
        "big": "[3145728|true]",
        "priority": "[p3|3, p3|3, p2|2, p1|1, p0|0, p0|0]",
        "nowhere": "NotFoundException",
        "wrongtype": "?",
    },
    "python": {
        "simple": "[" + ", ".join(f"m{i}|tag{i}|key{i}|{{p: v{i}}}|1" for i in range(6)) + "] then 0",
        "fifo": "{group0: [m0, m3, m6, m9, m12, m15], group1: [m1, m4, m7, m10, m13, m16], "
        "group2: [m2, m5, m8, m11, m14, m17]}",
        "delay": "[later|true]",
        "big": "[3072000|true]",
        "priority": "[p3|3, p2|2, p1|1, p0|0]",
        "nowhere": "NotFoundException",
        "wrongtype": "?",
    },
}
CASES = [(language, name) for language, own in OWN.items() for name in {**EXPECTED, **own}]


@pytest.fixture(scope="module")
def proxied(
    kind: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Proxy]]:
    """A cluster with everything that the scenarios use allowed, and a proxy in front of it."""
    root = tmp_path_factory.mktemp(f"proxy-{kind}")
    cluster = Cluster(
        kind, root, enablePropertyFilter="true", recallMessageEnable="true", transactionCheckInterval="3000",
        transactionTimeOut="5000", mappedFileSizeCommitLog=str(32 << 20),
    )  # fmt: skip
    proxy = Proxy(root / "proxy", cluster.namesrv)
    try:
        cluster.start()
        proxy.start()
        yield cluster, proxy
    finally:
        proxy.kill()
        cluster.stop()


@pytest.fixture(scope="module")
def outcomes(
    proxied: tuple[Cluster, Proxy], driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str]]:
    """{language: {scenario: outcome}}."""
    cluster, proxy = proxied
    found = {}
    for language, own in OWN.items():
        prefix = f"grpc_{language}"
        for name in {**EXPECTED, **own}:
            if name != "nowhere":
                make_topic(driver, cluster, f"{prefix}_{name}", TYPES.get(name, "NORMAL"))
        # All other groups come to be when they are used.
        make_group(driver, cluster, f"G{prefix}_fifo", "-o", "true")
        make_group(driver, cluster, f"G{prefix}_deadletter", "-r", "1")
        found[language] = grpc_scenarios(language, proxy, prefix, tmp_path_factory.mktemp(language))
    return found


def make_topic(driver: Driver, cluster: Cluster, topic: str, message_type: str) -> None:
    out = driver.admin(
        cluster.namesrv, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4",
        "-a", f"+message.type={message_type}",
    )  # fmt: skip
    assert "success" in out


def make_group(driver: Driver, cluster: Cluster, group: str, *options: str) -> None:
    out = driver.admin(cluster.namesrv, "updateSubGroup", "-c", "DefaultCluster", "-g", group, *options)
    assert "success" in out


@pytest.mark.parametrize(("language", "scenario"), CASES)
def test_a_grpc_client_through_the_proxy(
    outcomes: dict[str, dict[str, str]], language: str, scenario: str
) -> None:
    expected = {**EXPECTED, **OWN[language]}[scenario]
    found = outcomes[language].get(scenario, "no outcome")
    # Python writes lists with quotation marks and True.
    assert found.replace("'", "").replace('"', "").replace("True", "true") == expected


@pytest.mark.parametrize("language", OWN)
def test_what_failed_too_often_is_a_dead_letter(
    proxied: tuple[Cluster, Proxy], outcomes: dict[str, dict[str, str]], language: str
) -> None:
    cluster, _ = proxied
    assert outcomes[language]["deadletter"]
    topic = f"%DLQ%Ggrpc_{language}_deadletter"
    header, body = call(cluster.broker.address, 30, {"topic": topic, "queueId": "0"})
    assert (header["extFields"]["offset"], body) == ("1", b""), json.dumps(outcomes)
