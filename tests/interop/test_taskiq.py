"""taskiq's broker and schedule source at a broker of either product."""

from __future__ import annotations

from pathlib import Path

from tests.integration.contrib.taskiq_scenario import run_killed_worker, run_schedules
from tests.interop.rocketmq import Cluster, Driver


async def test_killed_taskiq_worker_loses_no_task(cluster: Cluster, driver: Driver, tmp_path: Path) -> None:
    await run_killed_worker(tmp_path, cluster.namesrv, driver.unique("taskiq"))


async def test_schedules_of_taskiq(cluster: Cluster, driver: Driver) -> None:
    await run_schedules(cluster.namesrv, driver.unique("schedules"))
