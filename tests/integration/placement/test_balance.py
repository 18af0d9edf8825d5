"""A skewed cluster of four brokers under load: sampled, planned, applied; measured before and after; nothing lost, order kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from aerobee.clock import SystemClock
from aerobee.placement.apply import Applier
from aerobee.placement.goals import imbalance, imbalances
from aerobee.placement.journal import Journal
from aerobee.placement.load_rows import model_of, rates_between
from aerobee.placement.load_sampler import LoadSampler
from aerobee.placement.measure import measured_imbalance
from aerobee.placement.model import allocation_of
from aerobee.placement.plan import make_plan, parse_plan
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.placement.plans import ORDER, QUICK, Load
from tests.waiting import wait_until

FREE = ("clicks", "views", "carts")
MESSAGES = 150  # of each topic, in one measurement: brokers keep offsets and their own locks, too


class CountedTime(SystemClock):
    """Sleeps until so much was sent: what is measured meanwhile does not depend on how busy the machine is."""

    def __init__(self, loads: Iterable[Load]) -> None:
        self._loads = tuple(loads)

    async def sleep(self, seconds: float) -> None:
        ends = [(load, len(load.acknowledged) + MESSAGES) for load in self._loads]
        await wait_until(lambda: all(len(load.acknowledged) >= end for load, end in ends), timeout_s=120)


async def test_a_skewed_cluster_under_load_becomes_even_and_goes_back(tmp_path: Path):
    async with LocalCluster(brokers=4, nameserver_config=ORDER) as cluster, AsyncExitStack() as stack:
        # All of it at two brokers of four; "keys" promises order.
        for topic in FREE:
            await cluster.create_topic(topic, queues=8, brokers=[0])
        await cluster.create_topic("keys", queues=6, brokers=[0, 1], attributes="+message.type=FIFO")
        loads = {topic: Load(cluster, topic, by_key=topic == "keys") for topic in (*FREE, "keys")}
        for load in loads.values():
            await stack.enter_async_context(load)
        sampler = await stack.enter_async_context(
            LoadSampler(cluster.nameserver_address, clock=cluster.clock, network=cluster.network)
        )
        first = await sampler.sample()
        counted = CountedTime(loads.values())
        await counted.sleep(1)
        model = model_of(rates_between(first, await sampler.sample()))
        assert {topic.name: topic.is_ordered for topic in model.topics} == {
            **dict.fromkeys(FREE, False),
            "keys": True,
        }
        assert imbalance(model, allocation_of(model)) > 1.8
        plan = make_plan(model, cluster.clock.now_ms(), move_ordered=True)
        plan = parse_plan(plan.encode())
        assert max(value for name, value in plan.after.imbalance.items() if name != "queues") <= 1.15
        before = await measured_imbalance(sampler, clock=counted, seconds=1.0)
        applier = Applier(sampler, plan, Journal(tmp_path / "j"), clock=cluster.clock, config=QUICK)
        await applier.run()
        after = await measured_imbalance(sampler, clock=counted, seconds=1.0)
        assert before is not None
        assert after is not None
        assert before["bytes_in"] > 1.8
        assert after["bytes_in"] < 1.5
        forecast = imbalances(
            model, {**allocation_of(model), **{c.topic: dict(c.after) for c in plan.changes}}
        )
        assert abs(after["bytes_in"] - forecast["bytes_in"]) < 0.4
        await applier.run(back=True)
        for topic in (*FREE, "keys"):
            states, _, _ = await sampler.states(topic, await sampler.master_addresses())
            now = Counter({name: state.read for name, state in states.items() if state.read})
            assert now == Counter(next(t for t in model.topics if t.name == topic).counts)
        await asyncio.gather(*(load.check() for load in loads.values()))
