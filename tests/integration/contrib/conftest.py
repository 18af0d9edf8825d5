"""One cluster, one worker and its application for all tests of Celery."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.testing import ThreadedCluster
from tests.integration.contrib.celery_worker import Worker, worker_environment


@pytest.fixture(scope="package")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("celery")


@pytest.fixture(scope="package")
def celery_cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as cluster:
        yield cluster


@pytest.fixture(scope="package")
def environment(directory: Path, celery_cluster: ThreadedCluster) -> dict[str, str]:
    return worker_environment(directory, celery_cluster.nameserver_address)


@pytest.fixture(scope="package")
def tasks(environment: dict[str, str]) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        module = importlib.import_module("tests.integration.contrib.celery_app")
        yield module
        module.app.close()


@pytest.fixture(scope="package")
def worker(directory: Path, environment: dict[str, str], tasks: Any) -> Iterator[Worker]:
    with Worker(directory, environment) as found:
        yield found
