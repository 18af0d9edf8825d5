"""The official gRPC clients for Go, Node.js and Rust: the same outcomes at a broker's own port, through `aerobee proxy` in front of it,
and through RocketMQ's proxy 5.5.0 in front of RocketMQ's broker.

The programs are go-grpc/, node-grpc/ and rust-grpc/. All scenarios of all languages run together.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.rocketmq import Cluster, Driver, Proxy, grpc_scenarios
from tests.interop.test_our_proxy import OurProxy
from tests.interop.test_proxy import REFERENCE_TRIES, TYPES, make_group, make_topic

SIMPLE = {
    "simple": " ".join(f"m{number}|tag{number}|key{number},second|v{number}|1" for number in range(4)),
    "tags": "m0 m2 m4 m6",
    "fifo": "group0 m0 m3 m6; group1 m1 m4 m7; group2 m2 m5 m8",
    "delay": "later true",
    "transaction": "checked commit true",
    "wrongtype": "refused",
}
PUSHED = {
    **SIMPLE,
    "push": " ".join(f"m{number}" for number in range(8)),
    "recall": "true after",
    "priority": "p3 p2 p1",
    "again": "again|1 again|2",
    "lite": "a m0 m3; b m1 m4",
}
EXPECTED = {"go": PUSHED, "node": PUSHED, "rust": SIMPLE}
SERVERS = ("broker", "proxy", "rocketmq")


@dataclass(slots=True)
class Served:
    """A cluster, and the address at which it serves gRPC."""

    cluster: Cluster
    endpoint: str


@contextmanager
def serving(server: str, root: Path) -> Iterator[Served]:
    kind = "rocketmq" if server == "rocketmq" else "aerobee"
    cluster = Cluster(
        kind, root, enablePropertyFilter="true", recallMessageEnable="true", transactionCheckInterval="3000",
        transactionTimeOut="5000", enableLmq="true", enableMultiDispatch="true", mappedFileSizeCommitLog=str(32 << 20),
        transactionOpBatchInterval="100", timerFlushIntervalMs="10000",
    )  # fmt: skip
    proxy: OurProxy | Proxy | None = None
    if server != "broker":
        proxy = (Proxy if kind == "rocketmq" else OurProxy)(root / "proxy", cluster.namesrv)
    try:
        cluster.start()
        if proxy is not None:
            proxy.start()
        yield Served(cluster, cluster.broker.address if proxy is None else proxy.address)
    finally:
        if proxy is not None:
            proxy.kill()
        cluster.stop()


def make_names(driver: Driver, cluster: Cluster, prefix: str, names: list[str]) -> None:
    """The topics of these scenarios, and the groups that are not made when they are used."""
    for name in names:
        make_topic(driver, cluster, f"{prefix}_{name}", TYPES.get(name, "NORMAL"))
    make_group(driver, cluster, f"G{prefix}_fifo", "-o", "true")
    make_group(driver, cluster, f"G{prefix}_lite", "--attributes", f"+lite.bind.topic={prefix}_lite")


@pytest.mark.parametrize("server", SERVERS)
def test_official_clients_of_three_languages(server: str, driver: Driver, tmp_path: Path) -> None:
    """What RocketMQ's own broker does not do on a busy machine is done again there, once."""
    with serving(server, tmp_path / "cluster") as served:
        wrong = {language: list(names) for language, names in EXPECTED.items()}
        found: dict[str, dict[str, str]] = {language: {} for language in EXPECTED}
        for number in range(REFERENCE_TRIES if server == "rocketmq" else 1):
            prefixes = {language: f"{language}{number or ''}" for language in wrong}
            for language, prefix in prefixes.items():
                (tmp_path / prefix).mkdir()
                make_names(driver, served.cluster, prefix, wrong[language])
            with ThreadPoolExecutor() as threads:
                running = {
                    language: threads.submit(
                        grpc_scenarios, language, served.endpoint, prefix, tmp_path / prefix, *wrong[language]
                    )
                    for language, prefix in prefixes.items()
                }
            for language, done in running.items():
                found[language].update(done.result())
            wrong = {
                language: [name for name in names if found[language].get(name) != EXPECTED[language][name]]
                for language, names in wrong.items()
            }
            wrong = {language: names for language, names in wrong.items() if names}
            if not wrong:
                break
            print(
                {
                    language: {name: found[language].get(name) for name in names}
                    for language, names in wrong.items()
                }
            )
        assert found == EXPECTED
