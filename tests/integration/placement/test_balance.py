"""A skewed cluster of four brokers under load: sampled, planned, applied; measured before and after; nothing lost, order kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from aerobee.placement.apply import Applier, measured_imbalance
from aerobee.placement.goals import imbalance, imbalances
from aerobee.placement.journal import Journal
from aerobee.placement.load_rows import model_of, rates_between
from aerobee.placement.load_sampler import LoadSampler
from aerobee.placement.model import allocation_of
from aerobee.placement.plan import make_plan, parse_plan
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.placement.test_apply import ORDER, QUICK, Load
from tests.waiting import wait_until

FREE = ("clicks", "views", "carts")


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
        count = {topic: len(load.acknowledged) for topic, load in loads.items()}
        await wait_until(
            lambda: all(len(load.acknowledged) > count[topic] + 60 for topic, load in loads.items())
        )
        model = model_of(rates_between(first, await sampler.sample()))
        assert {topic.name: topic.is_ordered for topic in model.topics} == {
            **dict.fromkeys(FREE, False),
            "keys": True,
        }
        assert imbalance(model, allocation_of(model)) > 1.8
        plan = make_plan(model, cluster.clock.now_ms(), move_ordered=True)
        plan = parse_plan(plan.encode())
        assert max(value for name, value in plan.after.imbalance.items() if name != "queues") <= 1.15
        before = await measured_imbalance(sampler, clock=cluster.clock, seconds=1.0)
        applier = Applier(sampler, plan, Journal(tmp_path / "j"), clock=cluster.clock, config=QUICK)
        await applier.run()
        after = await measured_imbalance(sampler, clock=cluster.clock, seconds=1.0)
        assert before is not None
        assert after is not None
        # What is measured of a second of a test's load is rough: brokers keep offsets and locks of their own, too.
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
