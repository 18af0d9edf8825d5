"""Plans at clusters with a broker that is registered and does not answer, at the wrong cluster, and with permissions beyond reading and writing."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from aerobee.errors import TransportError, UsageError
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.cluster import PlacementAdmin
from aerobee.placement.load_sampler import LoadSampler
from aerobee.placement.plan import TopicChange
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.placement.plans import (
    AWAY,
    FREE,
    ORDER,
    QUICK,
    Crash,
    admin_of,
    applier,
    counts,
    make,
    plan_of,
    settled,
)

PHANTOM = "broker-z"
UNUSED_ADDRESS = "127.0.0.1:1"


@pytest.fixture
async def cluster():
    async with LocalCluster(
        brokers=2, nameserver_config={**ORDER, "deleteTopicWithBrokerRegistration": "true"}
    ) as cluster:
        yield cluster


async def register_a_broker_that_is_away(admin: PlacementAdmin, cluster: LocalCluster, *topics: str) -> None:
    """As one whose machine lost its power a minute ago: nameservers list it, it does not answer. It stays as long as `admin` does."""
    own = {
        topic: {
            "topicName": topic,
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        for topic in topics
    }
    version = {"counter": 1, "timestamp": 1, "stateVersion": 0}
    body = {
        "topicConfigSerializeWrapper": {"topicConfigTable": own, "dataVersion": version},
        "filterServerList": [],
    }
    fields = {
        "brokerName": PHANTOM,
        "brokerAddr": UNUSED_ADDRESS,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
        "haServerAddr": "",
        "bodyCrc32": "0",
    }
    command = RemotingCommand(RequestCode.REGISTER_BROKER.value, fields, orjson.dumps(body))
    reply = await admin._session.remoting.invoke(cluster.nameserver_address, command, timeout_s=30)
    assert reply.code == 0, reply.remark
    assert PHANTOM in await admin.master_addresses()


async def test_a_broker_that_has_nothing_to_do_with_a_plan_holds_nothing_up(cluster, tmp_path: Path):
    await make(cluster, FREE, AWAY)
    async with admin_of(cluster) as admin:
        await register_a_broker_that_is_away(admin, cluster)
        await admin.create_group("readers", broker=cluster.broker_addresses[0])
        async with cluster.pull_consumer("readers") as consumer:
            queues = await consumer.queues("away")
            await consumer.assign(queues)
            await consumer.commit(dict.fromkeys(queues, 0))
        plan, journal = plan_of(cluster, FREE, AWAY), tmp_path / "journal"
        await applier(cluster, admin, plan, journal).run()
        masters = await admin.master_addresses()
        for change in (FREE, AWAY):
            states = (await admin.states(change.topic, masters, ()))[0]
            wanted = settled(**{name.replace("-", "_"): count for name, count in change.after.items()})
            assert {name: states[name] for name in wanted} == wanted
            assert PHANTOM not in states
        await applier(cluster, admin, plan, journal).run(back=True)


async def test_a_broker_that_has_the_topic_and_is_away_stops_a_plan(cluster, tmp_path: Path):
    await make(cluster, FREE)
    async with admin_of(cluster) as admin:
        await register_a_broker_that_is_away(admin, cluster, "free", "another")
        with pytest.raises(TransportError):
            await applier(cluster, admin, plan_of(cluster, FREE), tmp_path / "journal").run()


async def test_a_look_at_the_load_leaves_out_who_is_away(cluster):
    await make(cluster, FREE)
    async with (
        admin_of(cluster) as admin,
        LoadSampler(cluster.nameserver_address, clock=cluster.clock, network=cluster.network) as sampler,
    ):
        await register_a_broker_that_is_away(admin, cluster)
        rows = await sampler.sample()
    assert {row.broker for row in rows if not row.topic} == {"broker-a", "broker-b"}
    assert len([row for row in rows if row.topic == "free"]) == 4


async def test_a_begun_plan_continues_at_its_cluster_only(cluster, tmp_path: Path):
    await make(cluster, FREE)
    journal = tmp_path / "journal"

    def crash(event: str, step: object, reason: str) -> None:
        if event == "done":
            raise Crash

    async with admin_of(cluster) as admin:
        plan = plan_of(cluster, FREE)
        with pytest.raises(ExceptionGroup):
            await applier(cluster, admin, plan, journal, watch=crash).run()
        async with LocalCluster(brokers=2, nameserver_config=ORDER) as other:
            await make(other, FREE)
            async with admin_of(other) as wrong:
                with pytest.raises(UsageError, match=r"begun at another cluster: .*broker-a@.*--moved"):
                    await applier(other, wrong, plan, journal).run()
                assert await counts(wrong, "free") == settled(broker_a=4)
                moved = ApplyConfig(
                    changes_per_minute=1e6, routes_s=0.2, grace_s=0.05, poll_s=0.02, drain_s=60, moved=True
                )
                await applier(other, wrong, plan, journal, config=moved).run()
                assert await counts(wrong, "free") == settled(broker_a=1, broker_b=3)
        await applier(cluster, admin, plan, journal, config=QUICK).run()
        assert await counts(admin, "free") == settled(broker_a=1, broker_b=3)


async def test_a_permission_that_is_neither_reading_nor_writing_goes_with_the_queues(cluster, tmp_path: Path):
    """PERM_INHERIT: topics that are made by sending take such a topic as their model."""
    await cluster.create_topic("model", queues=4, perm=7, brokers=[0])
    change = TopicChange(topic="model", before={"broker-a": 4}, after={"broker-a": 2, "broker-b": 2})
    async with admin_of(cluster) as admin:
        await applier(cluster, admin, plan_of(cluster, change), tmp_path / "journal").run()
        masters = await admin.master_addresses()
        infos = [await admin.topic_config_at("model", masters[name]) for name in ("broker-a", "broker-b")]
        assert [info.perm for info in infos] == [7, 7]
