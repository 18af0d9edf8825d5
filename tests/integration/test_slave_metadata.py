"""What a slave copies besides the log: settings, groups and offsets, and what it gives back to a master that returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.topic_table import COPIED_TO_FIELD, TopicTable
from aerobee.clock import ManualClock, SystemClock
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps, loads_object
from aerobee.store.queue.consume_queue import ENTRY, FILLER_SIZE
from aerobee.store.queue.extended_queue import ExtendedQueue
from tests.integration.broker_calls import pull_request, records_of, send_request
from tests.integration.replica_pair import Pair, same
from tests.integration.slave_metadata import commit, left_alone
from tests.waiting import wait_until


async def test_topics_groups_and_offsets_are_at_the_slave_within_seconds(pair: Pair) -> None:
    master = await pair.start("master")
    slave = await pair.start_slave(master, slave_read_enable=True)
    await pair.send(master, 5)
    master.groups.find_or_create("g")
    await commit(pair, master, 3)
    await same(master, slave)
    await wait_until(lambda: slave.offsets.query("g", "t", 0) == 3, timeout_s=60)
    await wait_until(lambda: slave.topics.topics == master.topics.topics)
    assert slave.topics.data_version == master.topics.data_version
    await wait_until(lambda: slave.groups.groups == master.groups.groups)
    master.groups.disable("g")
    await wait_until(lambda: not slave.groups.groups["g"].consume_enable, timeout_s=60)
    reply = await pair.client.invoke(slave.address, pull_request("t", group="other"))
    assert len(records_of(reply)) == 5


async def test_filters_and_request_modes_are_at_the_slave_and_give_entries_their_bits(pair: Pair) -> None:
    bits: dict[str, Any] = {"store": {"enable_consume_queue_ext": True}, "enable_calc_filter_bit_map": True}
    master = await pair.start("master", **bits)
    slave = await pair.start_slave(master, **bits)
    await pair.send(master, 1)
    item = SubscriptionData("t", "a > 5", expression_type="SQL92", sub_version=7)
    master._serving.parts.filters.subscribed("g", [item])
    mode = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2}
    reply = await pair.client.invoke(master.address, RemotingCommand(401, {}, dumps(mode)))
    assert reply.code == 0, reply
    filters = slave._serving.parts.filters
    await wait_until(lambda: filters.find("g", "t") is not None, timeout_s=60)
    found = filters.find("g", "t")
    assert found is not None
    assert (found.expression, found.client_version, found.is_dead) == ("a > 5", 7, False)
    await wait_until(lambda: slave._serving._modes.get("t", "g").share_queue_num == 2, timeout_s=60)
    await slave.clock.sleep(0.01)
    await pair.client.invoke(master.address, send_request("t", properties="UNIQ_KEY\x01k\x02a\x019\x02"))
    await pair.client.invoke(master.address, send_request("t", properties="UNIQ_KEY\x01l\x02a\x011\x02"))
    await same(master, slave)
    queue = slave.store.queue("t", 0)
    assert isinstance(queue, ExtendedQueue)
    entries = queue.matching_entries(1, 2, None, found.may_take)
    assert [ENTRY.unpack_from(entries, at)[:2] != (0, FILLER_SIZE) for at in (0, 20)] == [True, False]


async def test_a_filter_that_its_master_lost_or_forgot_dies_at_the_slave(pair: Pair) -> None:
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    await pair.send(master, 1)
    theirs, mine = master._serving.parts.filters, slave._serving.parts.filters
    for group in ("left", "gone"):
        theirs.subscribed(group, [SubscriptionData("t", "a > 5", expression_type="SQL92", sub_version=7)])
    await wait_until(lambda: mine.find("gone", "t") is not None, timeout_s=60)
    theirs.subscribed("left", None)
    del theirs._topics["t"]["gone"]

    def is_dead(group: str) -> bool:
        found = mine.find(group, "t")
        return found is not None and found.is_dead

    await wait_until(lambda: is_dead("left") and is_dead("gone"), timeout_s=60)
    theirs.subscribed("left", [SubscriptionData("t", "a > 5", expression_type="SQL92", sub_version=7)])
    await wait_until(lambda: not is_dead("left"), timeout_s=60)


async def test_an_unchanged_table_of_offsets_is_not_sent_again(pair: Pair) -> None:
    master = await pair.start("master")
    await pair.send(master, 5)
    master.groups.find_or_create("g")
    await commit(pair, master, 3)
    first = await pair.client.invoke(master.address, RemotingCommand(43, {}))
    assert b'"t@g":{0:3}' in first.body
    etag = (first.ext or {})["aerobeeMark"]
    assert (first.ext or {})["aerobeeLogEnd"] == str(master.store.log.end) != "0"
    again = await pair.client.invoke(master.address, RemotingCommand(43, {"aerobeeMark": etag}))
    assert (again.code, again.body) == (0, b"")
    assert (again.ext or {})["aerobeeLogEnd"] == str(master.store.log.end)
    await commit(pair, master, 4)
    changed = await pair.client.invoke(master.address, RemotingCommand(43, {"aerobeeMark": etag}))
    assert b'"t@g":{0:4}' in changed.body


async def test_offsets_follow_a_reset_but_not_a_master_that_returns_with_old_ones(pair: Pair) -> None:
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    await pair.send(master, 50)
    master.groups.find_or_create("g")
    await commit(pair, master, 20)
    await same(master, slave)
    await wait_until(lambda: slave.offsets.query("g", "t", 0) == 20, timeout_s=60)
    await commit(pair, master, 7)  # a reset, while both see each other
    await wait_until(lambda: slave.offsets.query("g", "t", 0) == 7, timeout_s=60)
    port = int(master.address.rpartition(":")[2])
    await commit(pair, master, 9)
    await wait_until(lambda: slave.offsets.query("g", "t", 0) == 9, timeout_s=60)
    await master.stop()
    await commit(pair, slave, 30)  # a consumer continues at the slave
    master = await pair.start("master", listen_port=port)
    assert master.offsets.query("g", "t", 0) == 9
    slave.replication.become_slave(master.identity.ha_address, master_address=master.address)
    await wait_until(lambda: master.offsets.query("g", "t", 0) == 30, timeout_s=60)
    assert slave.offsets.query("g", "t", 0) == 30


async def test_replication_can_be_looked_at(pair: Pair) -> None:
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    await pair.send(master, 5)
    await same(master, slave)
    await wait_until(lambda: master.replication.state().replicas[0].acknowledged == master.store.log.end)
    status = await pair.client.invoke(master.address, RemotingCommand(907, {}))
    assert b'"master":true' in status.body
    assert b'"inSyncSlaveNums":1' in status.body
    assert b'"diff":0' in status.body
    status = await pair.client.invoke(slave.address, RemotingCommand(907, {}))
    assert b'"master":false' in status.body
    assert f'"masterAddr":"{master.identity.ha_address}"'.encode() in status.body
    where = await pair.client.invoke(master.address, RemotingCommand(906, {}))
    assert (where.ext or {})["masterHaAddress"] == master.identity.ha_address


def topics_file(broker: Broker) -> dict[str, Any]:
    return loads_object(Path(broker.store.config.path("config", "topics.json")).read_bytes(), "topics.json")


async def test_a_topic_that_was_made_shortly_before_its_master_was_lost_is_read_at_the_next(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the master acknowledged can be read, although the slave had no notification of the topic."""
    master, slave = await left_alone(pair, monkeypatch)
    await pair.send(master, 5, topic="new")
    reply = await pair.client.invoke(master.address, send_request("new", queue=2))
    assert reply.code == 0, reply
    await same(master, slave)
    assert "new" not in slave.topics.topics
    slave.replication.become_master(1)
    made = slave.topics.topics["new"]
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (3, 3, 6)
    reply = await pair.client.invoke(slave.address, pull_request("new"))
    assert len(records_of(reply)) == 5
    assert "gone" not in slave.topics.topics
    assert slave.topics.copied_to is None
    await slave.topics.settled()
    assert COPIED_TO_FIELD not in topics_file(slave)


async def test_it_is_read_when_the_slave_was_killed_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = await left_alone(pair, monkeypatch)
    await pair.send(master, 5, topic="new")
    await same(master, slave)
    await slave.topics.settled()
    table = topics_file(slave)
    assert COPIED_TO_FIELD in table
    assert "new" not in table["topicConfigTable"]
    await slave.stop()
    again = await pair.start("slave")
    assert "gone" not in again.topics.topics
    reply = await pair.client.invoke(again.address, pull_request("new"))
    assert len(records_of(reply)) == 5


async def test_a_cut_moves_back_to_where_the_topics_are_known(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, slave = await left_alone(pair, monkeypatch)
    known = slave.topics.copied_to
    assert known == slave.store.log.end
    slave.topics.log_cut(known + 1)
    assert slave.topics.copied_to == known
    slave.topics.log_cut(known - 7)
    assert slave.topics.copied_to == known - 7
    await slave.topics.settled()
    assert topics_file(slave)[COPIED_TO_FIELD] == known - 7


@pytest.mark.parametrize("value", ["x", -5, 1.5, float("inf"), 10**30, True, [], {}, "12"])
async def test_an_impossible_offset_stops_no_start_restores_no_topic(tmp_path: Path, value: object) -> None:
    table = TopicTable(file=Content({COPIED_TO_FIELD: value}), clock=SystemClock())  # type: ignore[arg-type]
    table.load()
    assert table.copied_to is None


class Content:
    """A file with this content, which is never written."""

    run = None

    def __init__(self, tree: dict[str, Any]) -> None:
        self._tree = tree

    def read(self) -> dict[str, Any]:
        return self._tree


async def test_a_new_slave_does_not_bring_back_what_its_master_deleted_before(pair: Pair) -> None:
    """The table comes first, then the log with messages of topics that are not in it."""
    master = await pair.start("master")
    for topic in ("gone", "kept"):
        await pair.send(master, 3, topic=topic)
    await master.topics.delete_async(["gone"])
    master.topics.deleted = {}  # RocketMQ's masters do not tell
    slave = await pair.start_slave(master)
    await same(master, slave)
    await wait_until(lambda: "kept" in slave.topics.topics, timeout_s=60)
    assert ("gone", 0) in slave.store.queues
    await slave.topics.settled()
    assert topics_file(slave)[COPIED_TO_FIELD] == slave.store.log.end
    await slave.kill()
    again = await pair.start("slave")
    assert "gone" not in again.topics.topics


async def test_a_topic_that_got_more_queues_shortly_before_its_master_was_lost_has_them_at_the_next(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await left_alone(pair, monkeypatch)
    config = master.topics.topics["kept"]
    more = dataclasses.replace(config, read_queue_nums=16, write_queue_nums=16)
    await master.topics.put_async([more])
    reply = await pair.client.invoke(master.address, send_request("kept", queue=12))
    assert reply.code == 0, reply
    await same(master, slave)
    slave.replication.become_master(1)
    reply = await pair.client.invoke(slave.address, pull_request("kept", queue=12))
    assert len(records_of(reply)) == 1
    made = slave.topics.topics["kept"]
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (13, 13, config.perm)


async def test_the_log_offset_of_topics_is_saved_once_a_minute() -> None:
    writes: list[dict[str, Any]] = []

    class File(Content):
        @staticmethod
        async def run(work: Callable[[], None]) -> None:
            work()

        def write(self, tree: dict[str, Any]) -> None:
            writes.append(tree)

    clock = ManualClock(0)
    table = TopicTable(file=File({}), clock=clock)  # type: ignore[arg-type]
    for offset in (10, 20, 30):
        table.copied(offset)
        await table.settled()
    assert [each[COPIED_TO_FIELD] for each in writes] == [10]
    clock.advance(61)
    table.copied(30)
    await table.settled()
    assert len(writes) == 1  # it has not moved
    table.copied(40)
    await table.settled()
    assert [each[COPIED_TO_FIELD] for each in writes] == [10, 40]


async def test_a_queue_that_cannot_be_looked_at_keeps_no_slave_from_leading(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = await left_alone(pair, monkeypatch)
    await pair.send(master, 1, topic="new")
    await same(master, slave)
    queue = slave.store.queues["new", 0]

    def fails(offset: int) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(type(queue), "entry", lambda self, offset: fails(offset))
        slave.replication.become_master(1)
    assert "cannot be determined: [Errno 24] Too many open files" in caplog.text
    assert slave._serving.leading.leads
    await pair.send(slave, 1, topic="kept")
