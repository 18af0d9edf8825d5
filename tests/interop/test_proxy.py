"""RocketMQ's proxy 5.5.0 in front of a broker, and the official gRPC clients, Java and Python, behind it.

The clients' programs (java-grpc/GrpcScenarios.java, grpc/scenarios.py) run all scenarios; each test looks at
one outcome. Run at RocketMQ's broker as well (AEROBEE_INTEROP_TARGET=both) the same outcomes are expected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.interop.rocketmq import Cluster, Driver, Proxy, call, grpc_scenarios

TYPES = {
    "fifo": "FIFO",
    "delay": "DELAY",
    "recall": "DELAY",
    "transaction": "TRANSACTION",
    "priority": "PRIORITY",
    "lite": "LITE",
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
        "lite": "{a=[m0, m3, m6, m9], b=[m1, m10, m4, m7]} of [a, b]",
        "nowhere": "NotFoundException",
        "wrongtype": "IllegalArgumentException",
    },
    "python": {
        "simple": "[" + ", ".join(f"m{i}|tag{i}|key{i}|{{p: v{i}}}|1" for i in range(6)) + "] then 0",
        "fifo": "{group0: [m0, m3, m6, m9, m12, m15], group1: [m1, m4, m7, m10, m13, m16], "
        "group2: [m2, m5, m8, m11, m14, m17]}",
        "delay": "[later|true]",
        "big": "[3072000|true]",
        "priority": "[p3|3, p2|2, p1|1, p0|0]",
        "lite": "{a: [m0, m3, m6, m9], b: [m1, m10, m4, m7]}",
        "wrongtype": "IllegalArgumentException",
    },
}
REFERENCE_TRIES = 2
CASES = [(language, name) for language, own in OWN.items() for name in {**EXPECTED, **own}]


@pytest.fixture(scope="module")
def proxied(
    kind: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Proxy]]:
    """A cluster with everything that the scenarios use allowed, and a proxy in front of it."""
    root = tmp_path_factory.mktemp(f"proxy-{kind}")
    cluster = Cluster(
        kind, root, enablePropertyFilter="true", recallMessageEnable="true", transactionCheckInterval="3000",
        transactionTimeOut="5000", enableLmq="true", enableMultiDispatch="true", mappedFileSizeCommitLog=str(32 << 20),
        # RocketMQ compares the 37 MB of its timer wheel byte by byte with each of these flushes.
        timerFlushIntervalMs="10000",
    )  # fmt: skip
    proxy = Proxy(root / "proxy", cluster.namesrv)
    try:
        cluster.start()
        proxy.start()
        yield cluster, proxy
    finally:
        proxy.kill()
        cluster.stop()


@dataclass(slots=True)
class Outcomes:
    """What each scenario of each language ended with, and in which topic."""

    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    topics: dict[tuple[str, str], str] = field(default_factory=dict)

    def found(self, language: str, scenario: str) -> str:
        """The outcome."""
        return plain(self.texts[language].get(scenario, "no outcome"))

    def wrong(self, language: str) -> list[str]:
        return [name for name, text in expected(language).items() if self.found(language, name) != text]


def plain(text: str) -> str:
    """An outcome as all languages write it: Python writes lists with quotation marks, and True."""
    return text.replace("'", "").replace('"', "").replace("True", "true")


def expected(language: str) -> dict[str, str]:
    return {**EXPECTED, **OWN[language]}


@pytest.fixture(scope="module")
def outcomes(
    kind: str, proxied: tuple[Cluster, Proxy], driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """Every scenario once. What RocketMQ's own broker does not do on a busy machine is done again there, alone, once.

    The proxy gives its calls to a broker two seconds, and the Python client neither repeats what failed nor continues with a queue
    whose receive failed. At RocketMQ's broker, one of three JVMs, that happens when the machine does other work: all outcomes
    were as expected at a load of 5 on two cores, 5 to 9 of Python's were not at a load of 8 to 19, with ProxyTimeoutException among
    them. Ours were as expected in the same runs, and get no second chance.
    """
    cluster, proxy = proxied
    all_found = Outcomes()
    again = {language: list(expected(language)) for language in OWN}
    for number in range(1 if kind == "aerobee" else REFERENCE_TRIES):
        prefixes = {language: f"grpc_{language}{number or ''}" for language in again}
        for language, prefix in prefixes.items():
            for name in again[language]:
                all_found.topics[language, name] = f"{prefix}_{name}"
                if name != "nowhere":
                    make_topic(driver, cluster, f"{prefix}_{name}", TYPES.get(name, "NORMAL"))
            # All other groups come to be when they are used.
            make_group(driver, cluster, f"G{prefix}_fifo", "-o", "true")
            make_group(driver, cluster, f"G{prefix}_deadletter", "-r", "1")
            attributes = f"+lite.bind.topic={prefix}_lite"
            make_group(driver, cluster, f"G{prefix}_lite", "--attributes", attributes)
        with ThreadPoolExecutor() as threads:  # most of a scenario's time is waiting
            running = {
                language: threads.submit(
                    grpc_scenarios, language, proxy.address, prefix, tmp_path_factory.mktemp(language), *again[language]
                )
                for language, prefix in prefixes.items()
            }  # fmt: skip
        for language, done in running.items():
            all_found.texts.setdefault(language, {}).update(done.result())
        again = {language: wrong for language in again if (wrong := all_found.wrong(language))}
        if not again:
            break
        print(f"{kind}, run {number}: {again}: {[done.result() for done in running.values()]}")
    return all_found


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
def test_a_grpc_client_through_the_proxy(outcomes: Outcomes, language: str, scenario: str) -> None:
    assert outcomes.found(language, scenario) == expected(language)[scenario]


@pytest.mark.parametrize("language", OWN)
def test_what_failed_too_often_is_a_dead_letter(
    proxied: tuple[Cluster, Proxy], outcomes: Outcomes, language: str
) -> None:
    cluster, _ = proxied
    assert outcomes.found(language, "deadletter") != "no outcome"
    topic = f"%DLQ%G{outcomes.topics[language, 'deadletter']}"
    header, body = call(cluster.broker.address, 30, {"topic": topic, "queueId": "0"})
    assert (header["extFields"]["offset"], body) == ("1", b""), json.dumps(outcomes.texts)
