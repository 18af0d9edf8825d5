"""dramatiq's broker at a broker of either product."""

from __future__ import annotations

from pathlib import Path

from tests.integration.contrib.dramatiq_scenario import run_killed_worker
from tests.interop.rocketmq import Cluster, Driver


def test_killed_dramatiq_worker_loses_no_message(cluster: Cluster, driver: Driver, tmp_path: Path) -> None:
    run_killed_worker(tmp_path, cluster.namesrv, driver.unique("v"))
