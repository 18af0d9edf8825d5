"""What a page of /metrics costs: `python bench/metrics_page.py [--topics 5000] [--groups 20]`.

A broker with that many topics, of which each group has an offset: measures a pass of the lag sampler, a page, and the longest
time that either held the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from time import perf_counter

import aiohttp

from aerobee.broker.broker import Broker
from aerobee.broker.config import BrokerConfig
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.config import StoreConfig


class LoopHold:
    """The longest time between two turns of a task that asks for each turn."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        before = perf_counter()
        while True:
            await asyncio.sleep(0)
            now = perf_counter()
            self.longest_s = max(self.longest_s, now - before)
            before = now

    def stop(self) -> float:
        self._task.cancel()
        return self.longest_s


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--groups", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        config = BrokerConfig(
            bind_address="127.0.0.1",
            broker_ip1="127.0.0.1",
            listen_port=0,
            metrics_exporter_type="PROM",
            metrics_prom_exporter_host="127.0.0.1",
            metrics_prom_exporter_port=0,
            metrics_lag_interval_millis=3_600_000,
        )
        broker = Broker(config, StoreConfig(store_path_root_dir=path))
        await broker.start()
        try:
            await fill(broker, asked.topics, asked.groups)
            await measure(broker)
        finally:
            await broker.stop()


async def fill(broker: Broker, topics: int, groups: int) -> None:
    names = [f"topic-{number}" for number in range(topics)]
    broker.topics.put_all(TopicConfig(name, 1, 1) for name in names)
    for number in range(groups):
        broker.groups.put(SubscriptionGroupConfig(f"group-{number}"))
    for number in range(groups):
        for name in names:
            broker.offsets.commit(f"group-{number}", name, 0, 0)
            broker.stats.group_get(f"group-{number}", name, 1, 100)
    for name in names:
        broker.stats.topic_put(name, 1, 100)


async def measure(broker: Broker) -> None:
    exporter = broker.exporter
    assert exporter is not None
    began, hold = perf_counter(), LoopHold()
    sample = await exporter._lags.measure()  # type: ignore[union-attr]
    print(
        f"lag of {len(sample.lags):,} pairs: {sample.work_s * 1000:.0f} ms of work in {perf_counter() - began:.1f} s, "
        f"held the loop for {hold.stop() * 1000:.1f} ms at most"
    )
    host, port = exporter.address
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            began, hold = perf_counter(), LoopHold()
            async with session.get(f"http://{host}:{port}/metrics") as answer:
                page = await answer.read()
            print(
                f"page of {len(page.splitlines()):,} lines, {len(page) / 1e6:.1f} MB: {exporter._server.page_cpu_s * 1000:.0f} ms"
                f" of work, answered in {(perf_counter() - began) * 1000:.0f} ms, held the loop for"
                f" {hold.stop() * 1000:.1f} ms at most"
            )


if __name__ == "__main__":
    asyncio.run(main())
