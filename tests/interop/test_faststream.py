"""FastStream's broker at a broker of either product."""

from __future__ import annotations

from pathlib import Path

from tests.integration.contrib.faststream_scenario import run_killed_worker, run_verdicts
from tests.interop.rocketmq import Cluster, Driver


async def test_killed_faststream_worker_loses_no_message(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    await run_killed_worker(tmp_path, cluster.namesrv, driver.unique("faststream"))


async def test_verdicts_of_faststream_handlers(cluster: Cluster, driver: Driver) -> None:
    await run_verdicts(cluster.namesrv, driver.unique("verdicts"))
