"""`aerobee proxy` in front of a cluster, RocketMQ's 5.5.0 and ours, and the official gRPC clients, Java and Python, behind it.

The clients' programs are those of test_proxy.py, which runs them through RocketMQ's proxy: the outcomes are the same.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.interop.rocketmq import Cluster, Driver, Server, grpc_scenarios
from tests.interop.test_proxy import (
    OWN,
    REFERENCE_TRIES,
    TYPES,
    expected,
    make_group,
    make_topic,
    plain,
)


class OurProxy(Server):
    """`aerobee proxy`, a process."""

    def __init__(self, root: Path, namesrv: str) -> None:
        super().__init__("aerobee", root, "proxy")
        self._namesrv = namesrv

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "aerobee", "proxy", "-n", self._namesrv, "--host", "127.0.0.1", "--port", str(self.port),
        ]  # fmt: skip

    def is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(scope="module", params=["rocketmq", "aerobee"])
def behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, OurProxy]]:
    """A cluster of two brokers, and our proxy in front of it."""
    root = tmp_path_factory.mktemp(f"our-proxy-{request.param}")
    cluster = Cluster(
        request.param, root, brokers=2, enablePropertyFilter="true", recallMessageEnable="true",
        transactionCheckInterval="3000", transactionTimeOut="5000", mappedFileSizeCommitLog=str(32 << 20),
        # RocketMQ writes decisions after 3 s, so that its next check does not know of them, and both are answered.
        transactionOpBatchInterval="100",
        timerFlushIntervalMs="10000", enableLmq="true", enableMultiDispatch="true",
    )  # fmt: skip
    proxy = OurProxy(root / "proxy", cluster.namesrv)
    try:
        cluster.start()
        proxy.start()
        yield cluster, proxy
    finally:
        proxy.kill()
        cluster.stop()


@pytest.mark.parametrize("language", OWN)
def test_an_official_client_through_our_proxy(
    behind: tuple[Cluster, OurProxy], driver: Driver, language: str, tmp_path: Path
) -> None:
    """What RocketMQ's brokers do twice on a busy machine, such as a check of a transaction, is done again there, alone, once."""
    cluster, proxy = behind
    wanted = expected(language)
    for number in range(1 if cluster.kind == "aerobee" else REFERENCE_TRIES):
        prefix = f"our_{language}{number or ''}"
        make_topics(driver, cluster, prefix, wanted)
        (tmp_path / prefix).mkdir()
        texts = grpc_scenarios(language, proxy.address, prefix, tmp_path / prefix, *wanted)
        found = {name: plain(text) for name, text in texts.items()}
        if found == wanted:
            return
        wrong = {name: found.get(name, "no outcome") for name in wanted if found.get(name) != wanted[name]}
        print(f"{cluster.kind}, {language}, run {number}: {wrong}")
        wanted = {name: wanted[name] for name in wrong}
    raise AssertionError(f"{wrong}, and not {wanted}\n{proxy.tail()}")


def make_topics(driver: Driver, cluster: Cluster, prefix: str, names: Iterable[str]) -> None:
    """The topics of these scenarios, and the groups that are not made when they are used."""
    for name in names:
        if name == "priority":  # at one broker: several brokers have no order among them
            out = driver.admin(
                cluster.namesrv, "updateTopic", "-b", cluster.broker.address, "-t", f"{prefix}_{name}", "-r", "4", "-w", "4",
                "-a", "+message.type=PRIORITY",
            )  # fmt: skip
            assert "success" in out
        elif name != "nowhere":
            make_topic(driver, cluster, f"{prefix}_{name}", TYPES.get(name, "NORMAL"))
    make_group(driver, cluster, f"G{prefix}_fifo", "-o", "true")
    make_group(driver, cluster, f"G{prefix}_deadletter", "-r", "1")
    make_group(driver, cluster, f"G{prefix}_lite", "--attributes", f"+lite.bind.topic={prefix}_lite")
