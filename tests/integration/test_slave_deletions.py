"""What vanishes at a master vanishes at its slaves, and what consumers committed at a slave reaches a master that returns."""

from __future__ import annotations

import dataclasses

from aerobee.broker.assembly.broker import Broker
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import RemotingCommand
from tests.integration.broker_calls import pull_request, records_of
from tests.integration.replica_pair import SLAVE, Pair, same
from tests.integration.slave_metadata import commit
from tests.waiting import wait_until


async def call(pair: Pair, broker: Broker, code: int, **fields: str) -> None:
    reply = await pair.client.invoke(broker.address, RemotingCommand(code, dict(fields)))
    assert reply.code == 0, reply


async def remake(pair: Pair, broker: Broker, topic: str) -> None:
    """Delete a topic and create it again."""
    await call(pair, broker, 215, topic=topic)
    await broker.topics.put_async([TopicConfig(topic, 2, 2)])


async def synced(slave: Broker) -> None:
    """Wait until a round that began now has copied all tables."""
    rounds = slave.replication.metadata
    for _ in range(2):
        at = rounds.synced_at_s
        await wait_until(lambda at=at: rounds.synced_at_s > at, timeout_s=60)


async def committed(pair: Pair, *, count: int = 5, group: str = "g") -> tuple[Broker, Broker]:
    """A master and its slave, which both have a group's offset `count` of topic t."""
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    await pair.send(master, count)
    master.groups.find_or_create(group)
    await commit(pair, master, count, group=group)
    await same(master, slave)
    await wait_until(lambda: slave.offsets.query(group, "t", 0) == count, timeout_s=60)
    await wait_until(lambda: "t" in slave.topics.topics and group in slave.groups.groups, timeout_s=60)
    return master, slave


def back(slave: Broker, master: Broker) -> None:
    slave.replication.become_slave(master.identity.ha_address, master_address=master.address)


async def restarted(pair: Pair, master: Broker) -> Broker:
    port = int(master.address.rpartition(":")[2])
    return await pair.start("master", listen_port=port)


async def test_offsets_of_a_remade_topic_vanish_at_an_online_slave(pair: Pair) -> None:
    master, slave = await committed(pair)
    await remake(pair, master, "t")
    await pair.send(master, 3)
    await same(master, slave)
    await synced(slave)
    assert slave.offsets.query("g", "t", 0) is None
    slave.replication.become_master(1)
    reply = await pair.client.invoke(slave.address, pull_request("t", group="g"))
    assert [record.queue_offset for record in records_of(reply)] == [0, 1, 2]


async def test_offsets_of_a_remade_topic_vanish_at_a_slave_that_was_away(pair: Pair) -> None:
    master, slave = await committed(pair)
    await slave.stop()
    await remake(pair, master, "t")
    await pair.send(master, 3)
    await commit(pair, master, 1)
    slave = await pair.start("slave", store=SLAVE, broker_id=1)
    assert slave.offsets.query("g", "t", 0) == 5
    back(slave, master)
    await same(master, slave)
    await wait_until(lambda: slave.offsets.query("g", "t", 0) == 1, timeout_s=60)
    slave.replication.become_master(1)
    assert slave.offsets.query("g", "t", 0) == 1


async def test_offsets_of_a_deleted_group_vanish_and_do_not_return(pair: Pair) -> None:
    master, slave = await committed(pair)
    await slave.stop()
    await call(pair, master, 207, groupName="g", cleanOffset="true")
    await master.stop()
    master = await restarted(pair, master)  # it knows what it removed
    slave = await pair.start("slave", store=SLAVE, broker_id=1)
    back(slave, master)
    await wait_until(lambda: slave.offsets.query("g", "t", 0) is None, timeout_s=60)
    await synced(slave)
    assert master.offsets.query("g", "t", 0) is None
    assert "g" not in master.groups.groups


async def test_queues_of_a_deleted_topic_vanish_at_slaves(pair: Pair) -> None:
    """Also those without sends since the topic was created again: their offsets begin at 0."""
    master, slave = await committed(pair)
    await remake(pair, master, "t")
    assert master.store.max_offset("t", 0) == 0
    await same(master, slave)
    await wait_until(lambda: slave.store.max_offset("t", 0) == 0, timeout_s=60)
    slave.replication.become_master(1)
    await pair.send(slave, 2)
    reply = await pair.client.invoke(slave.address, pull_request("t"))
    assert [record.queue_offset for record in records_of(reply)] == [0, 1]


async def test_queues_of_topics_deleted_before_go_at_a_new_slave(pair: Pair) -> None:
    master = await pair.start("master")
    for topic in ("gone", "remade", "kept"):
        await pair.send(master, 4, topic=topic)
    await call(pair, master, 215, topic="gone")
    await remake(pair, master, "remade")
    slave = await pair.start_slave(master)
    await same(master, slave)
    await wait_until(lambda: slave.store.max_offset("gone", 0) == 0, timeout_s=60)
    await wait_until(lambda: slave.store.max_offset("remade", 0) == 0, timeout_s=60)
    assert slave.store.max_offset("kept", 0) == 4


async def test_a_master_killed_after_a_deletion_has_no_old_offsets(pair: Pair) -> None:
    master = await pair.start("master")
    await pair.send(master, 5)
    master.groups.find_or_create("g")
    await commit(pair, master, 5)
    master.offsets.save()
    await remake(pair, master, "t")
    await pair.send(master, 7)
    await master.kill()
    again = await pair.start("master")
    assert again.offsets.query("g", "t", 0) is None


async def test_a_cut_forgets_deletions_behind_it(pair: Pair) -> None:
    master = await pair.start("master")
    await pair.send(master, 1)
    await call(pair, master, 215, topic="t")
    end = master.store.log.end
    assert master.topics.deleted == {"t": end}
    master.topics.log_cut(end)
    assert master.topics.deleted == {"t": end}
    master.topics.log_cut(end - 1)
    assert master.topics.deleted == {}


async def test_a_group_first_seen_at_a_slave_is_known_to_the_master(pair: Pair) -> None:
    master, slave = await committed(pair, count=30)
    await master.stop()
    slave.groups.find_or_create("new")
    await commit(pair, slave, 30, group="new")
    master = await restarted(pair, master)
    assert master.offsets.query("new", "t", 0) is None
    back(slave, master)
    await wait_until(lambda: master.offsets.query("new", "t", 0) == 30, timeout_s=60)
    assert "new" in master.groups.groups
    await synced(slave)
    assert slave.offsets.query("new", "t", 0) == 30
    assert "new" in slave.groups.groups


async def test_it_is_known_when_the_slave_was_restarted_too(pair: Pair) -> None:
    master, slave = await committed(pair, count=30)
    await master.stop()
    slave.groups.find_or_create("new")
    await commit(pair, slave, 30, group="new")
    await slave.stop()
    slave = await pair.start("slave", store=SLAVE, broker_id=1)
    master = await restarted(pair, master)
    back(slave, master)
    await wait_until(lambda: master.offsets.query("new", "t", 0) == 30, timeout_s=60)


async def test_a_master_that_takes_no_new_group_is_still_copied(pair: Pair) -> None:
    """An offset that the master refuses keeps no others from being copied."""
    master, slave = await committed(pair)
    await master.stop()
    slave.groups.find_or_create("new")
    await commit(pair, slave, 4, group="new")
    master = await restarted(pair, master)
    live = master.groups._live
    live.value = dataclasses.replace(live.value, auto_create_subscription_group=False)
    back(slave, master)
    await synced(slave)
    await commit(pair, master, 3)
    await wait_until(lambda: slave.offsets.query("g", "t", 0) == 3, timeout_s=60)
    assert "new" not in master.groups.groups
