"""One Spark session and one cluster for all of these tests. Without pyspark they are skipped: scripts/setup-spark."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.testing.threaded_cluster import ThreadedCluster

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
collect_ignore_glob = [] if HAS_SPARK else ["test_*.py"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    import aerobee.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])  # of the workers
    directory = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    aerobee.spark.register(session, push_filters=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(
        brokers=2, broker_config={"enablePropertyFilter": "true", "dedupWindowMillis": "600000"}
    ) as cluster:
        yield cluster
