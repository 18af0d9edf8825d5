"""Topics, disks and keys that come and go: the cluster gets well, and a topic that is made again is a new one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.simulation.churn import NEW_CONTROLLER, NEW_REPLICA, OTHER_KEY, Churn
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.fleet import run_all
from aerobee.simulation.node import Settings
from aerobee.simulation.outcome import Outcome
from aerobee.simulation.restart import start
from aerobee.simulation.run import run_seed
from aerobee.simulation.scenarios import Scenario

SEEDS = range(2)
BEGIN_S = 30.0
FILL_S = 300.0
CLEAN_S = 15.0  # longer than the pause of whoever deletes files of the log (cleanResourceInterval)


async def _in_sync(cluster: Cluster) -> None:
    def is_full() -> bool:
        master = cluster.master()
        if master is None:
            return False
        mode = master.process.replication.mode
        assert isinstance(mode, AutoSwitchMode)
        return len(mode.members) == len(cluster.brokers)

    await cluster.until(is_full, BEGIN_S, "the replicas were never in sync")


def _outcome(seed: int, script: Callable[[Cluster, random.Random], Any], settings: Settings) -> Outcome:
    (outcome,) = run_all(
        [seed], lambda each: run_seed(each, scenario=Scenario("churn", "", script, settings))
    )
    return outcome


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [NEW_REPLICA, NEW_CONTROLLER, OTHER_KEY])
def test_a_cluster_gets_well(name: str, seed: int) -> None:
    async def script(cluster: Cluster, rng: random.Random) -> None:
        await _in_sync(cluster)
        await dict(Churn(cluster, rng).all())[name]()

    outcome = _outcome(seed, script, Settings(has_ha_key=bool(seed)))
    assert not outcome.failure, outcome.story
    happened = {
        NEW_REPLICA: "gets an empty disk",
        NEW_CONTROLLER: "is a member again",
        OTHER_KEY: "key at the HA port",
    }
    assert any(happened[name] in line for line in outcome.story)


def test_a_broker_with_a_full_disk_keeps_its_oldest_messages() -> None:
    """The checkers want all of them from whichever broker leads in the end."""

    async def script(cluster: Cluster, rng: random.Random) -> None:
        await _in_sync(cluster)
        master = cluster.master()
        assert master is not None
        log = master.process.store.log
        await cluster.until(lambda: len(log.segments) > 1, FILL_S, "the log never had two files")
        disk = master.host.disk
        before, disk.total_bytes = disk.total_bytes, disk.used_bytes
        await cluster.clock.sleep(CLEAN_S)
        begin = log.min_offset
        disk.total_bytes = before
        assert begin == 0

    outcome = _outcome(0, script, Settings())
    assert not outcome.failure, outcome.story


async def _rounds(cluster: Cluster, rng: random.Random) -> None:
    await _in_sync(cluster)
    await cluster.clock.sleep(3.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_topic_that_is_made_again_is_a_new_one(seed: int) -> None:
    outcome = _outcome(seed, _rounds, Settings(has_passing_topic=True))
    assert not outcome.failure, outcome.story


def _offsets_stay(offsets: ConsumerOffsets, topic: str) -> None:
    return None


def test_offsets_that_outlive_their_topic_are_detected() -> None:
    with mock.patch.object(ConsumerOffsets, "remove_topic", _offsets_stay):
        found = [_outcome(seed, _rounds, Settings(has_passing_topic=True)).checker for seed in range(4)]
    assert "delivered" in found


def test_every_broker_gets_a_key_that_changes_while_one_starts() -> None:
    async def script(cluster: Cluster, rng: random.Random) -> None:
        await _in_sync(cluster)
        node = next(each for each in cluster.brokers if each is not cluster.master())
        await cluster.kill(node, power=False)
        starting = asyncio.create_task(start(cluster, node))  # with the former key
        await cluster.clock.sleep(0.001)
        await dict(Churn(cluster, rng).all())[OTHER_KEY]()
        await starting
        assert {bool(each.process.store.config.ha_shared_key) for each in cluster.brokers} == {True}

    outcome = _outcome(0, script, Settings(has_ha_key=False))
    assert not outcome.failure, outcome.story
