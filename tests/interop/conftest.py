"""Fixtures of the interop tests: which product is under test, its cluster, the Java driver.

AEROBEE_INTEROP_TARGET   aerobee (default), rocketmq (proves the tests themselves), or both
AEROBEE_INTEROP=skip     skips these tests where the peers are not installed; never in CI
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interop.rocketmq import Cluster, Driver, missing_pieces


def targets() -> list[str]:
    target = os.environ.get("AEROBEE_INTEROP_TARGET", "aerobee")
    known = {"aerobee": ["aerobee"], "rocketmq": ["rocketmq"], "both": ["rocketmq", "aerobee"]}
    if target not in known:
        raise pytest.UsageError(f"AEROBEE_INTEROP_TARGET={target}: must be one of {', '.join(known)}")
    return known[target]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", targets(), scope="session")


@pytest.fixture(scope="session", autouse=True)
def peers() -> None:
    missing = missing_pieces()
    if not missing:
        return
    text = f"run scripts/setup-interop first, it makes: {', '.join(missing)}"
    if os.environ.get("AEROBEE_INTEROP") == "skip" and not os.environ.get("CI"):
        pytest.skip(text)
    pytest.fail(text)


@pytest.fixture(scope="session")
def driver(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver(tmp_path_factory.mktemp("driver"))
    yield driver
    driver.stop()


@pytest.fixture(scope="session")
def cluster(kind: str, peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A NameServer and one broker of the product under test, shared by the tests that only add topics and groups."""
    cluster = Cluster(kind, tmp_path_factory.mktemp(kind))
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def real(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A NameServer and a broker of RocketMQ."""
    cluster = Cluster("rocketmq", tmp_path_factory.mktemp("real"))
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest, driver: Driver) -> str:
    """A name for a topic that no other test uses."""
    return driver.unique(
        "".join(c if c.isalnum() else "_" for c in request.node.originalname or "T")[:60] + "_"
    )
