"""A slave acts as master while its master is away: who it is, what it serves, what leaves for another broker, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.acting import deliveries, waiting
from aerobee.broker.acting.acting_master import ActingMaster
from aerobee.broker.acting.escape_bridge import EscapeBridge, Escaping
from aerobee.broker.assembly.broker import Broker
from aerobee.broker.delay.redelivery import WaitingMessage
from aerobee.broker.state.role import Role
from aerobee.broker.timer.timer_feature import Timers
from aerobee.clock import SystemClock
from aerobee.message import decode_records
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps, loads
from aerobee.store.message_store import MessageStore
from aerobee.system_names import HALF_TOPIC
from tests.integration.broker_calls import make_broker, pull_request, records_of, send_request
from tests.integration.pop_requests import ack, pop
from tests.integration.promoted_pair import HALF, keys, stored
from tests.integration.replica_pair import SLAVE, same
from tests.ports import free_broker_port
from tests.waiting import wait_until

TIMERS = 40
LEVELS = {"message_delay_level": "1s 8s 20s"}
ACTING = {
    "enable_slave_acting_master": True,
    "enable_remote_escape": True,
    "sync_broker_member_group_period": 100,
}


class Cluster:
    """A NameServer that presents acting masters, a master with its slave, and a master of another name."""

    def __init__(self, path: Path, client: RemotingClient, nameserver: NameServer) -> None:
        self.path = path
        self.client = client
        self.nameserver = nameserver
        self.brokers: list[Broker] = []
        self.port = free_broker_port()
        self.lost_ms = 0
        self.master: Broker
        self.slave: Broker
        self.other: Broker

    async def begin(self, **config: Any) -> None:
        self.other = await self._start("other", name="broker-b", store=LEVELS)
        self.master = await self.start_master(**config)
        self.slave = await self._start(
            "slave", store={**SLAVE, **LEVELS}, broker_id=1, **{**ACTING, **config}
        )
        await wait_until(lambda: self.slave.replication.master is not None, timeout_s=60)
        for broker in (self.master, self.other):
            await self.ask(broker, send_request("t", b"first"))
        await same(self.master, self.slave)
        await wait_until(lambda: self.slave.topics.get("t") is not None, timeout_s=60)

    async def start_master(self, **config: Any) -> Broker:
        self.master = await self._start("master", store=LEVELS, listen_port=self.port, **{**ACTING, **config})
        return self.master

    async def _start(self, directory: str, *, name: str = "broker-a", **config: Any) -> Broker:
        broker = make_broker(
            self.path / directory,
            name=name,
            namesrv_addr=self.nameserver.address,
            slave_read_enable=False,
            **config,
        )
        await broker.start()
        self.brokers.append(broker)
        return broker

    async def lose_master(self) -> None:
        """The slave has everything; the master is killed, the slave acts."""
        await same(self.master, self.slave)
        await wait_until(lambda: offsets_of(self.slave) == offsets_of(self.master), timeout_s=60)
        await wait_until(lambda: self.slave.topics.topics == self.master.topics.topics, timeout_s=60)
        await self.master.kill()
        self.lost_ms = self.slave.clock.now_ms()
        await wait_until(lambda: self.slave.role.role is Role.ACTING, "the slave acts", timeout_s=60)

    async def ask(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        reply = await self.client.invoke(broker.address, request, timeout_s=60)
        assert reply.code == 0, reply
        return reply


def offsets_of(broker: Broker) -> object:
    return broker.offsets.to_dict()["offsetTable"], broker.schedule.offsets


def roles_of(broker: Broker) -> list[Role]:
    """The roles that it has from now on, as they come."""
    roles: list[Role] = []
    broker.role.on_change(lambda state: roles.append(state.role))
    return roles


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    config = NameServerConfig(
        listen_port=0, bind_address="127.0.0.1", support_acting_master=True, notify_min_broker_id_changed=True
    )
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(NameServer(config))
        cluster = Cluster(tmp_path, client, nameserver)
        yield cluster
        for broker in reversed(cluster.brokers):
            await broker.stop()
        await client.close()


async def test_consumers_find_the_acting_master_and_are_served_by_it(cluster: Cluster) -> None:
    await cluster.begin()
    slave = cluster.slave
    refused = await cluster.client.invoke(slave.address, pull_request("t"))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    await cluster.lose_master()

    async def route() -> TopicRouteData:
        request = RemotingCommand(105, {"topic": "t", "acceptStandardJsonOnly": "true"})
        reply = await cluster.client.invoke(cluster.nameserver.address, request)
        return TopicRouteData.decode(reply.body)

    found = await route()
    addresses = {each.broker_name: each.broker_addrs for each in found.broker_datas}
    assert addresses["broker-a"][0] == slave.address
    assert {each.broker_name: each.perm & 2 for each in found.queue_datas} == {"broker-a": 0, "broker-b": 2}
    assert [each.body for each in records_of(await cluster.ask(slave, pull_request("t")))] == [b"first"]
    queues = [{"topic": "t", "brokerName": "broker-a", "queueId": 0}]
    lock = {"consumerGroup": "g", "clientId": "c", "mqSet": queues}
    locked = await cluster.ask(slave, RemotingCommand(RequestCode.LOCK_BATCH_MQ, {}, dumps(lock)))
    assert len(loads(locked.body)["lockOKMQSet"]) == 1
    refused = await cluster.client.invoke(slave.address, send_request("t"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    await cluster.start_master()
    await wait_until(lambda: slave.role.role is Role.SLAVE, "the slave follows again", timeout_s=60)
    await cluster.ask(cluster.master, send_request("t", b"second"))
    await same(cluster.master, slave)


@pytest.mark.parametrize("is_on", [False, True])
async def test_a_frame_with_foreign_addresses_leaves_the_slave_with_its_master(
    cluster: Cluster, is_on: bool
) -> None:
    await cluster.begin(enable_slave_acting_master=is_on)
    slave, client = cluster.slave, cluster.client
    followed, roles = slave.replication.master, roles_of(slave)
    assert followed is not None
    notice = RemotingCommand(
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "1", "minBrokerAddr": slave.address}
    )
    await client.invoke_oneway(slave.address, notice)
    for extra in ({}, {"aerobeeHandover": "true"}):
        foreign = {
            "masterAddress": cluster.other.address,
            "masterHaAddress": cluster.other.identity.ha_address,
            "masterFlushOffset": "0",
            **extra,
        }
        reply = await cluster.ask(slave, RemotingCommand(RequestCode.EXCHANGE_BROKER_HA_INFO, foreign))
        said = (reply.ext or {}).get("masterHaAddress")
        assert said == (None if is_on else slave.identity.ha_address)
    await cluster.ask(cluster.master, send_request("t", b"second"))
    await same(cluster.master, slave)
    assert slave.replication.master == followed
    assert roles == []


async def test_a_master_that_comes_back_elsewhere_is_found_at_the_nameserver(cluster: Cluster) -> None:
    await cluster.begin()
    await cluster.lose_master()
    cluster.port = free_broker_port()
    master = await cluster.start_master()

    def follows() -> bool:
        followed = cluster.slave.replication.master
        return followed is not None and followed.ha == master.identity.ha_address

    await wait_until(follows, "the slave follows the new address", timeout_s=60)
    await cluster.ask(master, send_request("t", b"second"))
    await same(master, cluster.slave)
    assert cluster.slave.role.role is Role.SLAVE


async def test_what_is_due_leaves_for_another_broker_and_comes_once(cluster: Cluster) -> None:
    await cluster.begin()
    for broker in (cluster.master, cluster.other):
        await cluster.ask(broker, send_request("later", b"", properties="UNIQ_KEY\x01route\x02"))

    async def send_delayed(name: str, in_ms: int, level: int) -> None:
        due_ms = cluster.master.clock.now_ms() + in_ms
        for kind, delay in (
            ("level", f"DELAY\x01{level}\x02"),
            ("timer", f"TIMER_DELIVER_MS\x01{due_ms}\x02"),
        ):
            text = f"UNIQ_KEY\x01{name}{kind}\x02TAGS\x01x\x02{delay}"
            await cluster.ask(cluster.master, send_request("later", name.encode(), properties=text))

    await send_delayed("early", 1_000, 1)
    await wait_until(lambda: len(keys(cluster.master, "later")) == 3, timeout_s=60)
    await send_delayed("meanwhile", 8_000, 2)
    await send_delayed("after", 20_000, 3)
    await cluster.lose_master()
    log_end = cluster.slave.store.log.end
    await wait_until(lambda: len(keys(cluster.other, "later")) >= 3, "they were delivered", timeout_s=60)
    assert cluster.slave.store.log.end == log_end, "an acting master stores nothing"
    master = await cluster.start_master()
    await wait_until(lambda: cluster.slave.role.role is Role.SLAVE, timeout_s=60)

    def delivered() -> list[str]:
        """By the master and elsewhere; what is due last may be delivered by either. On a slow machine the master may have
        delivered just before it died unreplicated messages: they come from both."""
        own = stored(master, "later")
        before = {each.properties["UNIQ_KEY"] for each in own if each.store_timestamp <= cluster.lost_ms}
        elsewhere = [each for each in keys(cluster.other, "later") if each not in before]
        return sorted(each for each in (*keys(master, "later"), *elsewhere) if each != "route")

    names = sorted(name + kind for name in ("early", "meanwhile", "after") for kind in ("level", "timer"))
    await wait_until(lambda: len(delivered()) >= 6, "what was left comes at the master", timeout_s=90)
    assert delivered() == names
    await same(master, cluster.slave)


async def test_an_acting_master_reads_no_timer_before_it_is_due(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the timer topic nor the log grows the reading: the units of the copied wheel name what waits."""
    await cluster.begin(recall_message_enable=True, enable_remote_escape=False)
    due_ms = cluster.master.clock.now_ms() + 3_600_000
    handles = []
    for number in range(TIMERS):
        text = f"UNIQ_KEY\x01timer{number}\x02TIMER_DELIVER_MS\x01{due_ms + number * 1000}\x02"
        reply = await cluster.ask(cluster.master, send_request("t", b"later", properties=text))
        handles.append((reply.ext or {})["recallHandle"])
    fields = {"topic": "t", "recallHandle": handles[0], "producerGroup": "g"}
    await cluster.ask(cluster.master, RemotingCommand(RequestCode.RECALL_MESSAGE, fields))
    log_end = cluster.master.store.log.end
    (timers,) = (each for each in cluster.slave._serving.features if isinstance(each, Timers))

    def is_copied() -> bool:
        checkpoint = timers._copy.checkpoint
        return (
            checkpoint is not None
            and checkpoint.queue_offset == TIMERS + 1
            and checkpoint.scan_from >= log_end
            and (cluster.slave.schedule.copied_from or 0) >= log_end
        )

    await wait_until(is_copied, "the slave has copied the wheel", timeout_s=60)
    await cluster.lose_master()
    read: list[int] = []
    scanned: list[int] = []
    read_record, scan = waiting._read, deliveries.deliveries_between

    def count_read(store: MessageStore, offset: int) -> WaitingMessage | None:
        read.append(offset)
        return read_record(store, offset)

    async def count_scan(store: MessageStore, start: int, end: int) -> set[int]:
        scanned.append(end - start)
        return await scan(store, start, end)

    monkeypatch.setattr(waiting, "_read", count_read)
    monkeypatch.setattr(deliveries, "deliveries_between", count_scan)
    acting = acting_of(cluster.slave)._deliveries
    found = sorted(await acting._all())
    assert len(read) <= 1, "only what cancels others is read"
    assert sum(scanned) <= cluster.slave.store.log.end - log_end
    expected = [due_ms + number * 1000 for number in range(TIMERS)]
    assert [each.due_ms for each in found if each.is_timer] == expected
    assert await acting._send(found[0]) is None, "the recalled message leaves for no broker"
    assert acting.delivered_count == 0


def acting_of(broker: Broker) -> ActingMaster:
    switch = broker._serving.acting
    assert switch is not None
    assert switch._acting is not None
    return switch._acting


async def test_a_living_master_that_a_nameserver_forgot_has_no_second_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator unregisters it; its log continues to come."""
    await cluster.begin()
    slave, master = cluster.slave, cluster.master
    roles, groups = roles_of(slave), []
    told = ActingMaster.group_is

    def group_is(self: ActingMaster, group: dict[int, str]) -> None:
        told(self, group)
        if self is acting_of(slave):
            groups.append(min(group))

    monkeypatch.setattr(ActingMaster, "group_is", group_is)
    await wait_until(lambda: bool(groups), timeout_s=60)
    fields = {
        "brokerName": "broker-a", "brokerAddr": master.address, "brokerId": "0",
        "clusterName": master._serving.parts.identity.cluster,
    }  # fmt: skip

    async def is_alone() -> bool:
        """The master registers again every 30 s."""
        reply = await cluster.client.invoke(
            cluster.nameserver.address, RemotingCommand(104, fields), timeout_s=60
        )
        assert reply.code == 0
        return groups[-5:] == [1] * 5

    async def is_acting_while_alone() -> bool:
        return await is_alone() and slave.role.role is Role.ACTING

    await wait_until(is_alone, "the slave is notified that it is alone", timeout_s=60)
    assert roles == []
    await cluster.ask(master, send_request("t", b"more"))
    await same(master, slave)
    hears = acting_of(slave)._hears_master
    acting_of(slave)._hears_master = lambda: False
    await wait_until(is_acting_while_alone, "the link is down for a moment", timeout_s=60)
    acting_of(slave)._hears_master = hears
    await wait_until(lambda: slave.role.role is Role.SLAVE, "it gives the role back", timeout_s=60)
    await master.kill()
    await wait_until(lambda: slave.role.role is Role.ACTING, "now it is", timeout_s=60)


async def test_an_unread_message_blocks_nothing_and_is_not_skipped(cluster: Cluster) -> None:
    """40 messages of a topic that no other broker has, in front of three at the same level."""
    await cluster.begin()
    for broker in (cluster.master, cluster.other):
        await cluster.ask(broker, send_request("later", b"", properties="UNIQ_KEY\x01route\x02"))
    cluster.master.schedule.stop()  # whether it has delivered some of them is no matter of time
    blocked, taken = [f"b{number}" for number in range(40)], ["x", "y", "z"]
    for topic, names in (("here-only", blocked), ("later", taken), ("here-only", ["last"])):
        for name in names:
            text = f"UNIQ_KEY\x01{name}\x02DELAY\x011\x02"
            await cluster.ask(cluster.master, send_request(topic, b"", properties=text))
    await cluster.lose_master()
    await wait_until(
        lambda: sorted(keys(cluster.other, "later")) == ["route", *taken], "they left", timeout_s=60
    )
    await wait_until(lambda: len(cluster.slave._serving.parts.escaped) == 3, "it is noted", timeout_s=60)
    assert cluster.slave.schedule.offsets.get(1, 0) == 0
    master = await cluster.start_master()
    await wait_until(lambda: len(keys(master, "here-only")) >= 41, timeout_s=60)
    assert sorted(keys(master, "here-only")) == sorted([*blocked, "last"])
    assert keys(master, "later") == ["route"], "what had left comes no second time"
    assert master.schedule.offsets[1] == 44


async def test_a_slow_broker_holds_up_no_message_of_another(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a master that comes back meanwhile gets the state in parts, until it knows everything."""
    await cluster.begin()
    for broker in (cluster.master, cluster.other):
        await cluster.ask(broker, send_request("later", b"", properties="UNIQ_KEY\x01route\x02"))
    cluster.master.schedule.stop()
    monkeypatch.setattr("aerobee.broker.acting.acting_master.HANDOVER_PART", 2)
    released, parts = asyncio.Event(), []
    send, ask_part = EscapeBridge.send, ActingMaster._ask_part

    async def slow(self: EscapeBridge, message: Escaping) -> str:
        if message.body == b"slow":
            await released.wait()
        return await send(self, message)

    async def counted(self: ActingMaster, slave: str, known: int) -> tuple[int, bool, bool]:
        parts.append(await ask_part(self, slave, known))
        return parts[-1]

    monkeypatch.setattr(EscapeBridge, "send", slow)
    monkeypatch.setattr(ActingMaster, "_ask_part", counted)
    names = ["slow", "a", "b", "c", "d", "e"]
    for name in names:
        text = f"UNIQ_KEY\x01{name}\x02DELAY\x011\x02"
        await cluster.ask(cluster.master, send_request("later", name.encode(), properties=text))
    await cluster.lose_master()
    here = cluster.slave._serving.parts.escaped
    await wait_until(lambda: len(here) == 5, "the others left", timeout_s=60)
    coming = asyncio.create_task(cluster.start_master())
    await wait_until(lambda: len(parts) >= 4, "it asks once more", timeout_s=60)
    assert [count for count, _, _ in parts[:3]] == [2, 2, 1]
    assert not any(is_whole for _, _, is_whole in parts)
    released.set()
    master = await coming
    assert parts[-1][2]
    assert master._serving.parts.escaped.sources == here.sources
    assert len(here) == 6
    await wait_until(lambda: master.schedule.offsets.get(1) == 6, timeout_s=60)
    assert sorted(keys(cluster.other, "later")) == sorted(["route", *names])
    assert keys(master, "later") == ["route"]


async def test_offsets_are_taken_also_from_a_slave_that_acts_no_more(cluster: Cluster) -> None:
    """It gave its role back before the master told it to."""
    await cluster.begin()
    slave = cluster.slave
    create = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "g"}')
    await cluster.ask(cluster.master, create)
    await wait_until(lambda: slave.groups.get("g") is not None, timeout_s=60)
    await cluster.lose_master()
    commit = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "1"}
    await cluster.ask(slave, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, commit))
    acting_of(slave)._master_due_s = float("inf")
    slave.role.change(Role.SLAVE, "of the test")
    master = await cluster.start_master()
    assert master.offsets.query("g", "t", 0) == 1


async def test_offsets_removed_before_a_master_was_lost_do_not_return(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave had not heard of the deletion, and tells its offsets to the master that returns."""
    await cluster.begin()
    slave, asked = cluster.slave, asyncio.Event()
    for group in ("g", "h"):
        create = RemotingCommand(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "%s"}' % group.encode()
        )
        await cluster.ask(cluster.master, create)
        commit = {"consumerGroup": group, "topic": "t", "queueId": "0", "commitOffset": "1"}
        await cluster.ask(cluster.master, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, commit))
    await wait_until(lambda: slave.offsets.query("h", "t", 0) == 1, timeout_s=60)

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(slave.replication.metadata, "_copy_topics", never)
    await asyncio.wait_for(asked.wait(), 60)
    delete = {"groupName": "g", "cleanOffset": "true"}
    await cluster.ask(cluster.master, RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete))
    cluster.master.offsets.save()
    await cluster.master.kill()
    await wait_until(lambda: slave.role.role is Role.ACTING, "the slave acts", timeout_s=60)
    assert slave.offsets.query("g", "t", 0) == 1
    acting_of(slave)._master_due_s = float("inf")
    slave.role.change(Role.SLAVE, "of the test")
    master = await cluster.start_master()
    assert master.offsets.query("g", "t", 0) is None
    assert master.offsets.query("h", "t", 0) == 1


async def test_without_escape_what_is_due_waits_for_the_master(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.begin(enable_remote_escape=False)
    text = "UNIQ_KEY\x01k\x02DELAY\x011\x02"
    await cluster.ask(cluster.master, send_request("t", b"late", properties=text))
    await cluster.lose_master()
    assert "set enableRemoteEscape=true to send them" in caplog.text
    master = await cluster.start_master(enable_remote_escape=False)
    await wait_until(lambda: "k" in keys(master, "t"), timeout_s=60)
    assert "k" not in keys(cluster.other, "t")


async def test_open_transactions_are_asked_about_by_another_broker(cluster: Cluster) -> None:
    """When its time has expired, as the master would: its producer may be about to say what becomes of it."""
    checks = {"transaction_time_out": 4_000}
    await cluster.begin(**checks)

    async def half(key: str) -> RemotingCommand:
        text = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
        request = send_request("t", key.encode(), properties=text)
        assert request.ext is not None
        request.ext |= {"a": "payers", "f": str(HALF)}
        return await cluster.ask(cluster.master, request)

    await half("open")
    done = await half("done")
    assert done.ext is not None
    end = {
        "producerGroup": "payers", "tranStateTableOffset": done.ext["queueOffset"], "msgId": "done",
        "commitLogOffset": str(int(done.ext["msgId"][-16:], 16)), "commitOrRollback": "8",
        "fromTransactionCheck": "false", "transactionId": "done",
    }  # fmt: skip
    await cluster.ask(cluster.master, RemotingCommand(RequestCode.END_TRANSACTION, end))
    await wait_until(lambda: "done" in keys(cluster.master, "t"), timeout_s=60)
    await cluster.lose_master()

    def open_at(broker: Broker) -> list[str]:
        (feature,) = (each for each in broker.features if each.name == "transactions")
        return [key[1] for key in feature.transaction_store.table.by_key]  # type: ignore[attr-defined]

    await wait_until(lambda: open_at(cluster.other) == ["open"], "the other broker asks now", timeout_s=60)
    first = next(each for each in stored(cluster.slave, HALF_TOPIC) if each.properties["UNIQ_KEY"] == "open")
    (copy,) = stored(cluster.other, HALF_TOPIC)
    assert copy.store_timestamp >= first.store_timestamp + 4_000
    master = await cluster.start_master(**checks)
    await wait_until(lambda: cluster.slave.role.role is Role.SLAVE, timeout_s=60)
    assert open_at(master) == []


async def test_pops_are_served_and_nothing_that_was_not_acknowledged_is_lost(cluster: Cluster) -> None:
    await cluster.begin(enable_remote_escape=False)
    for number in range(6):
        await cluster.ask(cluster.master, send_request("jobs", b"%d" % number))
    await cluster.lose_master()
    slave, client = cluster.slave, cluster.client
    first = await pop(client, slave, "jobs", queue=0, count=2, invisible_ms=60_000)
    second = await pop(client, slave, "jobs", queue=0, count=2, invisible_ms=1_000)
    assert [each.body for each in (*first, *second)] == [b"0", b"1", b"2", b"3"]
    for message in first:
        assert await ack(client, slave, message) == 0
    await wait_until(lambda: slave.offsets.query("group", "jobs", 0) == 2, timeout_s=60)
    assert await ack(client, slave, second[1]) == 0
    seen: list[bytes] = []

    async def more() -> bool:
        seen.extend(each.body for each in await pop(client, slave, "jobs", queue=0, invisible_ms=60_000))
        return b"2" in seen

    async with AsyncExitStack():
        for _ in range(600):
            if await more():
                break
            await slave.clock.sleep(0.1)
    assert {b"2", b"4", b"5"} <= set(seen)
    assert slave.offsets.query("group", "jobs", 0) == 2
    master = await cluster.start_master(enable_remote_escape=False)
    await wait_until(lambda: slave.role.role is Role.SLAVE, timeout_s=60)
    await wait_until(lambda: master.offsets.query("group", "jobs", 0) == 2, "it got the offset", timeout_s=60)
    again = await pop(client, master, "jobs", queue=0)
    assert [each.body for each in again] == [b"2", b"3", b"4", b"5"]


async def test_a_pop_that_is_not_acknowledged_goes_to_a_retry_topic_elsewhere(cluster: Cluster) -> None:
    await cluster.begin()
    await cluster.ask(cluster.master, send_request("jobs", b"again"))
    await cluster.lose_master()
    (message,) = await pop(cluster.client, cluster.slave, "jobs", queue=0, invisible_ms=500)
    assert message.body == b"again"
    retry = "%RETRY%group_jobs"
    other = cluster.other
    await wait_until(lambda: other.store.max_offset(retry, 0) == 1, "the copy is there", timeout_s=60)
    reply = await cluster.ask(other, pull_request(retry, group="group"))
    (record,) = decode_records(reply.body)
    assert (record.body, record.reconsume_times) == (b"again", 1)
    await wait_until(lambda: cluster.slave.offsets.query("group", "jobs", 0) == 1, timeout_s=60)
