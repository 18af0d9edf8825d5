"""Brokers of a controller group in one process, over real sockets: ids, roles, failover, rejoin, leases."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.replication.after_cut import AfterCut
from aerobee.broker.replication.auto_switch_mode import NO_LEASE, AutoSwitchMode
from aerobee.broker.replication.controller_agent import ha_address_behind
from aerobee.broker.replication.unproven_connections import SLAVES_MAX
from aerobee.broker.state.role import Role
from aerobee.clock import SystemClock
from aerobee.errors import ConfigError, StoreError
from aerobee.ha.controller.liveness import Heartbeat
from aerobee.ha.stream.epoch_file import EpochEntry
from aerobee.ha.stream.handshake import Handshake, HandshakeReply
from aerobee.ha.stream.transfer_header import StateReport, TransferFrame
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import loads
from aerobee.store.files.config import FlushDiskType
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint
from tests.integration.broker_calls import make_broker, records_of, send_request
from tests.integration.certificates import Identity, identity
from tests.integration.controller_group import SYNC, Group, same
from tests.integration.controller_quorum import leader_of
from tests.integration.replica_pair import log_bytes
from tests.waiting import wait_until


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    async with AsyncExitStack() as stack:
        group = Group(tmp_path, client, stack)
        yield group
        await group.stop()
        await client.close()


async def test_brokers_take_ids_the_first_leads_and_others_follow(group: Group, tmp_path: Path) -> None:
    await group.begin()
    a = await group.start("a")
    assert a.role.role is Role.MASTER
    assert (tmp_path / "a" / "brokerIdentity").read_text() == f"{a.config.broker_cluster_name}#broker-g#1"
    assert not (tmp_path / "a" / "brokerIdentity-temp").exists()
    await group.sent(a, [b"1", b"2"])
    b = await group.start("b")
    assert b.role.role is Role.SLAVE
    await same(a, b)
    await group.sent(a, [b"3", b"4"])
    await same(a, b)
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    assert (tmp_path / "b" / "epochFileCheckpoint").read_bytes().endswith(b"1-0\n")
    assert (await group.send(b, b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    epochs = await group.client.invoke(a.address, RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE))
    assert loads(epochs.body)["epochList"] == [{"endOffset": (1 << 63) - 1, "epoch": 1, "startOffset": 0}]
    assert loads(epochs.body)["brokerId"] == 0


async def test_nameservers_know_the_master_as_id_0_after_each_failover(group: Group) -> None:
    await group.begin()
    a = await group.start("a", store=SYNC)
    b = await group.start("b", store=SYNC)
    await group.sent(a, [b"1"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)

    def registered() -> dict[int, str]:
        found = [live.identity for live in group.nameserver.table.live.values()]
        return {each.broker_id: each.address for each in found if each.name == "broker-g"}

    await wait_until(lambda: registered() == {0: a.address, 2: b.address}, timeout_s=60)
    await a.kill()
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    await wait_until(lambda: registered().get(0) == b.address, timeout_s=60)


async def test_what_every_member_has_survives_the_master(group: Group) -> None:
    await group.begin(3)
    for name in "abc":
        await group.start(name, store=SYNC)
    a = await group.has_master()
    await wait_until(lambda: group.members() == {1, 2, 3}, timeout_s=60)
    await group.sent(a, [b"before %d" % number for number in range(50)])
    await a.kill()
    master = await group.has_master(other_than=a)
    await wait_until(
        lambda: master.store.max_offset("t", 0) == 50, "confirmed messages are seen", timeout_s=60
    )
    assert master.role.epoch == 2
    await group.sent(master, [b"after %d" % number for number in range(10)])
    name = next(name for name, each in group.brokers.items() if each is a)
    again = await group.start(name, store=SYNC)
    await same(*group.brokers.values())
    await wait_until(lambda: group.members() == {1, 2, 3}, timeout_s=60)
    await wait_until(
        lambda: again.store.max_offset("t", 0) == 60, "confirmed messages are seen", timeout_s=60
    )


@pytest.mark.parametrize("key", ["", "a key of sixteen or more"], ids=["tls", "tls-and-key"])
async def test_a_group_under_tls_elects_copies_and_fails_over(group: Group, tmp_path: Path, key: str) -> None:
    authority = identity(tmp_path, "authority")

    def store(name: str, by: Identity = authority) -> dict[str, Any]:
        signed = identity(tmp_path, name, by)
        return {
            **SYNC,
            "ha_shared_key": key,
            "ha_tls_cert_path": str(signed.cert_path),
            "ha_tls_key_path": str(signed.key_path),
            "ha_tls_trust_cert_path": str(by.cert_path),
        }

    await group.begin(3)
    for name in "abc":
        await group.start(name, store=store(name))
    a = await group.has_master()
    await wait_until(lambda: group.members() == {1, 2, 3})
    await group.sent(a, [b"before %d" % number for number in range(50)])
    peer = await group.start("d", store=store("d", identity(tmp_path, "untrusted")))
    await a.kill()
    master = await group.has_master(other_than=a)
    assert master is not peer
    await wait_until(lambda: master.store.max_offset("t", 0) == 50, "confirmed messages are seen")
    await group.sent(master, [b"after %d" % number for number in range(10)])
    name = next(name for name, each in group.brokers.items() if each is a)
    again = await group.start(name, store=store(name))
    await same(*(each for each in group.brokers.values() if each is not peer))
    await wait_until(lambda: group.members() == {1, 2, 3})
    await wait_until(lambda: again.store.max_offset("t", 0) == 60, "confirmed messages are seen")
    assert peer.store.log.end == 0


async def test_a_returning_master_truncates_unreplicated_records(group: Group, tmp_path: Path) -> None:
    await group.begin()
    a = await group.start("a")
    b = await group.start("b")
    await group.sent(a, [b"common %d" % number for number in range(5)])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await same(a, b)
    # Its slave takes no more, and is a member for as long as it may lag: this group waits for no replica.
    assert b.controllers is not None
    b.controllers.agent.mode._follower._is_following = False
    end = a.store.log.end
    reply = await group.send(a, b"only here")
    assert reply.code == 0
    assert a.store.log.end > end
    await a.kill()
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    await group.sent(b, [b"second epoch"])
    again = await group.start("a")
    await same(again, b)
    assert list((tmp_path / "a" / "cut").iterdir())
    await wait_until(lambda: again.store.max_offset("t", 0) == 6, "confirmed messages are seen", timeout_s=60)


async def test_a_returning_master_without_shared_bytes_starts_empty(
    group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await group.begin()
    a = await group.start("a")
    b = await group.start("b")
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    assert b.controllers is not None
    b.controllers.agent.mode._follower._is_following = False
    await group.sent(a, [b"only here %d" % number for number in range(3)])
    a.offsets.commit("g", "t", 0, 3)
    lost = log_bytes(a)
    assert b.store.log.end == 0
    await a.kill()
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    await group.sent(b, [b"second epoch", b"and more"])
    again = await group.start("a")
    await same(again, b)
    kept = sorted((tmp_path / "a" / "cut").iterdir())
    assert b"".join(path.read_bytes() for path in kept) == lost
    assert f"its bytes from 0 up to {len(lost)} were cut off, with 3 queue entries" in caplog.text
    assert (tmp_path / "a" / "epochFileCheckpoint").read_bytes().endswith(b"\n2-0\n")
    await wait_until(lambda: again.store.max_offset("t", 0) == 2, "confirmed messages are seen", timeout_s=60)
    assert (again.offsets.query("g", "t", 0) or 0) <= 2
    await again.stop()
    once_more = await group.start("a")
    await same(once_more, b)
    await wait_until(lambda: once_more.store.max_offset("t", 0) == 2, timeout_s=60)


async def test_a_deposed_master_forgets_progress_in_what_is_cut_off(group: Group) -> None:
    """Its consumers were further than the log that is left: as the next master it would pass over what comes there."""
    await group.begin()
    a = await group.start("a")
    b = await group.start("b")
    await group.sent(a, [b"common %d" % number for number in range(5)])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await same(a, b)
    assert a.controllers is not None
    assert b.controllers is not None
    b.controllers.agent.mode._follower._is_following = False
    assert (await group.send(a, b"only here")).code == 0
    a.offsets.commit("g", "t", 0, 6)
    await group.controllers[0]._masters.elect("broker-g", preferred_id=2)
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    cut_end = b.store.log.end
    await wait_until(lambda: a.store.log.end == cut_end and a.role.role is Role.SLAVE, timeout_s=60)
    await wait_until(lambda: a.offsets.query("g", "t", 0) == 5, "the offset is within the log", timeout_s=60)
    assert a.controllers.agent.mode.confirm_offset <= cut_end
    await group.sent(b, [b"second epoch"])
    await same(a, b)
    await wait_until(lambda: group.members() == {1, 2}, "the slave may be elected", timeout_s=60)
    await group.controllers[0]._masters.elect("broker-g", preferred_id=1)
    await wait_until(lambda: a.role.role is Role.MASTER, timeout_s=60)
    assert a.offsets.query("g", "t", 0) == 5
    found = a.controllers.agent.mode.sync_state_set
    assert found is not None
    assert found.confirm_offset <= a.store.log.end


async def deposed(group: Group) -> tuple[Broker, Broker, int]:
    """A master whose last message has no copy, and whose group's offset is behind it; its slave, which leads now and has more;
    and where the log of the first is to be cut."""
    await group.begin()
    a = await group.start("a")
    b = await group.start("b")
    await group.sent(a, [b"common %d" % number for number in range(5)])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await same(a, b)
    assert b.controllers is not None
    b.controllers.agent.mode._follower._is_following = False
    cut_end = a.store.log.end
    assert (await group.send(a, b"only here")).code == 0
    a.offsets.commit("g", "t", 0, 6)
    a.offsets.save()
    await group.controllers[0]._masters.elect("broker-g", preferred_id=2)
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    await group.sent(b, [b"second epoch %d" % number for number in range(3)])
    return a, b, cut_end


async def test_a_kill_before_what_belongs_to_a_cut_is_done_leaves_it_to_the_next_start(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(after_cut: AfterCut) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(AfterCut, "_finish", never)
        a, b, cut_end = await deposed(group)
        await wait_until(lambda: a.store.pending_cut is not None, "the log is cut", timeout_s=60)
        assert a.store.pending_cut == a.store.log.end == cut_end < b.store.log.end
        a.offsets.commit("g", "t", 0, 6)  # as it was before the cut
        a.offsets.save()
        await a.kill()
    # Progress in the bytes that are gone: timers and transactions of the new epoch would be passed over.
    config = tmp_path / "a" / "config"
    ahead = TimerCheckpoint(read_time_ms=1 << 42, log_flushed=0, queue_offset=9, counter=77, scan_from=0)
    (config / "timercheck").write_bytes(ahead.encode())
    (config / "transactionSettled.json").write_bytes(b'{"settledOffset":%d}' % (1 << 40))
    (config / "actingDeliveries.json").write_bytes(b'{"sources":[%d]}' % (cut_end + 1))
    again = await group.start("a")
    await same(again, b)
    assert again.store.pending_cut is None
    assert not (config / "timercheck").exists() or (config / "timercheck").read_bytes() != ahead.encode()
    assert not (config / "transactionSettled.json").exists()
    assert again.offsets.query("g", "t", 0) == 5
    saved = loads((config / "consumerOffset.json").read_bytes())
    assert (saved["offsetTable"], saved["aerobeeLogEnd"]) == ({"t@g": {"0": 5}}, cut_end)


@pytest.mark.parametrize("error", [OSError(28, "no space"), RuntimeError("a fault")])
async def test_what_belongs_to_a_cut_is_tried_again_and_nothing_comes_before(
    group: Group, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forget, ends = AfterCut.forget, []

    def refused_twice(after_cut: AfterCut, log_offset: int) -> None:
        ends.append(after_cut._store.log.end)
        if len(ends) < 3:
            raise error
        forget(after_cut, log_offset)

    monkeypatch.setattr(AfterCut, "forget", refused_twice)
    a, b, cut_end = await deposed(group)
    await same(a, b)
    assert ends == [cut_end] * 3
    assert a.store.pending_cut is None
    assert a.offsets.query("g", "t", 0) == 5
    assert caplog.text.count("trying again") >= 2


async def test_a_master_of_an_earlier_epoch_cuts_nothing(group: Group) -> None:
    """Whoever is at the address: what it lacks may have been confirmed in the epochs that it does not know."""
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [b"1", b"2", b"3"])
    end = a.store.log.end

    async def old_master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(16)
        writer.write(HandshakeReply(max_offset=end - 1, entries=(EpochEntry(1, 0),)).encode())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(old_master, "127.0.0.1", 0)
    async with server:
        assert a.controllers is not None
        await a.controllers.agent.stop()
        port = server.sockets[0].getsockname()[1]
        a.replication.become_slave(f"127.0.0.1:{port}", 2, master_address="127.0.0.1:1")

        def trouble() -> str:
            following = a.replication.state().following
            return following.trouble if following is not None else ""

        await wait_until(lambda: "in epoch 1" in trouble(), timeout_s=60)
        assert a.store.log.end == end
        a.replication.become_slave("", 2)


async def test_a_nameserver_among_the_controllers_grants_no_lease(group: Group) -> None:
    """It takes heartbeats, too, and says nothing of leases, as RocketMQ's controllers do."""
    await group.begin()
    a = await group.start("a")
    assert a.controllers is not None
    agent = a.controllers.agent
    beat = {"clusterName": "C", "brokerName": "broker-g", "brokerAddr": a.address, "brokerId": "1"}
    answer = await agent._client.heartbeat(group.nameserver.address, beat, 5.0)
    assert answer.lease_ms is None
    agent._take_answer(answer, 0.0, a.role.epoch)
    assert agent.mode.lease_until_s < NO_LEASE
    await group.sent(a, [b"1"])


async def forged_replica(group: Group, broker_id: int) -> None:
    """Have the controllers know one more broker of the group, which is not there."""
    leader = next(each for each in group.controllers if each.status.is_serving)
    common = {"clusterName": "C", "brokerName": "broker-g"}
    for code, ext in (
        (
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            {"appliedBrokerId": f"{broker_id}", "registerCheckCode": "127.0.0.1:9;1"},
        ),
        (
            RequestCode.CONTROLLER_REGISTER_BROKER,
            {"brokerId": f"{broker_id}", "brokerAddress": "127.0.0.1:9"},
        ),
    ):
        answer = await group.client.invoke(leader.address, RemotingCommand(code, {**common, **ext}))
        assert answer.code == 0, answer.remark


async def connect_ha(
    broker: Broker, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = broker.identity.ha_address.rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(source, 0))


def mode_of(broker: Broker) -> AutoSwitchMode:
    assert broker.controllers is not None
    return broker.controllers.agent.mode


async def test_who_asks_at_the_ha_port_and_does_not_read_takes_no_memory(group: Group) -> None:
    await group.begin()
    a = await group.start("a")
    await forged_replica(group, 2)
    assert a.controllers is not None
    epochs = a.controllers.calls._epochs
    for epoch in range(a.role.epoch + 1, 1_000):
        epochs.entries = (*epochs.entries, EpochEntry(epoch, a.store.log.end))
    _, writer = await connect_ha(a)
    mode = mode_of(a)
    await wait_until(lambda: mode._claims.others)
    writer.write(Handshake(broker_id=2).encode() * 20_000)
    await wait_until(lambda: mode._slaves)
    slave = next(iter(mode._slaves))
    assert slave._transport is not None
    for _ in range(200):
        await asyncio.sleep(0)
        assert slave._transport.get_write_buffer_size() < 1 << 20
    writer.close()


async def test_silent_connections_of_one_host_keep_no_slave_away(group: Group) -> None:
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [b"1"])
    silent = [await connect_ha(a, "127.0.0.2") for _ in range(SLAVES_MAX + 1)]
    assert await silent[0][0].read() == b"", "the oldest of the host that has the most goes"
    b = await group.start("b")
    await same(a, b)
    assert len(mode_of(a)._claims.others) <= SLAVES_MAX
    for _, writer in silent:
        writer.close()


async def test_a_replica_confirms_no_byte_that_it_was_not_sent(group: Group) -> None:
    await group.begin()
    a = await group.start("a", store=SYNC)
    await forged_replica(group, 2)
    mode = mode_of(a)
    reader, writer = await connect_ha(a)
    writer.write(Handshake(broker_id=2).encode())
    await reader.readexactly(20 + 12)
    writer.write(StateReport(0).encode())
    await wait_until(lambda: mode._slaves and next(iter(mode._slaves))._sender is not None)
    slave = next(iter(mode._slaves))
    assert slave._sender is not None
    slave._sender.pause()
    await group.sent(a, [b"1"])
    writer.write(StateReport(a.store.log.end).encode())
    await wait_until(lambda: slave not in mode._slaves, "it is sent away")
    assert slave.acknowledged == -1
    writer.close()


async def test_the_first_report_of_a_replica_acknowledges_nothing(group: Group) -> None:
    await group.begin()
    a = await group.start("a", store=SYNC)
    await group.sent(a, [b"1"])
    await forged_replica(group, 2)
    mode = mode_of(a)
    reader, writer = await connect_ha(a)
    writer.write(Handshake(broker_id=2).encode())
    await reader.readexactly(20 + 12)
    writer.write(StateReport(a.store.log.end).encode())
    await reader.readexactly(36)  # the empty frame that it is answered with
    slave = next(iter(mode._slaves))
    assert slave.acknowledged == -1
    assert mode.wanted() is None, "nothing speaks for it yet"
    writer.write(StateReport(a.store.log.end).encode())
    await wait_until(lambda: slave.acknowledged == a.store.log.end)
    writer.close()


async def test_a_second_claim_of_an_id_leaves_the_living_slave(group: Group) -> None:
    await group.begin()
    a = await group.start("a", store=SYNC)
    b = await group.start("b", store=SYNC)
    await group.sent(a, [b"1"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    mode = mode_of(a)
    living = next(iter(mode._slaves))
    reader, writer = await connect_ha(a)
    writer.write(Handshake(broker_id=2).encode())
    assert await reader.read() == b"", "it gets no answer, and sent away"
    assert list(mode._slaves) == [living]
    await group.sent(a, [b"2"])
    await same(a, b)
    writer.close()


async def test_a_slave_that_is_back_replaces_its_dead_connection(group: Group) -> None:
    """Its machine lost power: no end of the first connection was ever seen."""
    await group.begin()
    a = await group.start("a", store=SYNC)
    await forged_replica(group, 2)
    mode = mode_of(a)
    reader, dead = await connect_ha(a)
    dead.write(Handshake(broker_id=2).encode())
    await reader.readexactly(20 + 12)
    dead.write(StateReport(0).encode())
    await reader.readexactly(36)
    first = next(iter(mode._slaves))
    again_reader, again = await connect_ha(a)
    again.write(Handshake(broker_id=2).encode())
    await again_reader.readexactly(20 + 12)
    assert first not in mode._slaves
    assert len(mode._slaves) == 1
    for writer in (dead, again):
        writer.close()


async def test_an_id_is_claimed_from_the_host_that_the_controllers_know(group: Group) -> None:
    await group.begin()
    a = await group.start("a", store=SYNC)
    await forged_replica(group, 2)
    for broker_id, source in ((2, "127.0.0.2"), (7, "127.0.0.1")):
        reader, writer = await connect_ha(a, source)
        writer.write(Handshake(broker_id=broker_id).encode())
        assert await reader.read() == b"", f"{broker_id} from {source}"
        writer.close()
    assert not mode_of(a)._slaves
    reader, writer = await connect_ha(a)
    writer.write(Handshake(broker_id=2).encode())
    await reader.readexactly(20 + 12)
    writer.close()


async def test_ha_allowed_hosts_replace_what_the_controllers_know(group: Group) -> None:
    await group.begin()
    a = await group.start("a", store={**SYNC, "ha_allowed_hosts": "127.0.0.2, 10.9.0.0/16"})
    reader, writer = await connect_ha(a)
    assert await reader.read() == b"", "127.0.0.1 is none of them"
    writer.close()
    reader, writer = await connect_ha(a, "127.0.0.2")
    writer.write(Handshake(broker_id=2).encode())
    await reader.readexactly(20 + 12)
    writer.close()


async def test_an_epoch_that_the_handshake_did_not_name_is_not_kept(group: Group) -> None:
    """Kept, it would be above all that the controllers give: this broker could never lead again."""
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [b"1", b"2"])
    raw = log_bytes(a)
    b = await group.start("b")
    await same(a, b)
    assert b.controllers is not None
    await b.controllers.agent.stop()
    entries = b.controllers.calls._epochs.entries

    async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(16)
        writer.write(HandshakeReply(max_offset=len(raw), entries=entries).encode())
        await reader.readexactly(12)
        frame = TransferFrame(
            offset=len(raw), epoch=(1 << 31) - 1, epoch_start_offset=0, confirm_offset=0, body=b"x"
        )
        writer.write(frame.encode())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(liar, "127.0.0.1", 0)
    async with server:
        b.replication.become_slave(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 1)

        def trouble() -> str:
            following = b.replication.state().following
            return following.trouble if following is not None else ""

        await wait_until(lambda: "handshake ended with 1" in trouble(), timeout_s=60)
        assert b.controllers.calls._epochs.entries == entries
        b.replication.become_slave("", 1)


async def test_a_handshake_of_an_unassigned_epoch_is_refused(group: Group) -> None:
    """Its bytes would begin an epoch that no election reaches."""
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [b"1"])
    b = await group.start("b")
    await same(a, b)
    assert b.controllers is not None
    await b.controllers.agent.stop()
    end, entries = b.store.log.end, b.controllers.calls._epochs.entries
    poison = (1 << 31) - 1

    async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(16)
        claimed = (*entries, EpochEntry(poison, end))
        writer.write(HandshakeReply(max_offset=end, entries=claimed).encode())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(liar, "127.0.0.1", 0)
    async with server:
        b.replication.become_slave(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 1)

        def trouble() -> str:
            following = b.replication.state().following
            return following.trouble if following is not None else ""

        await wait_until(lambda: f"reports epoch {poison}" in trouble(), timeout_s=60)
        assert b.controllers.calls._epochs.entries == entries
        b.replication.become_slave("", 1)


async def test_a_member_that_is_made_a_learner_does_not_lead(group: Group) -> None:
    await group.begin()
    a, b = await group.start("a", store=SYNC), await group.start("b", store=SYNC)
    await group.sent(a, [b"1"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await b.stop()
    # It is in the set until the master has it taken out, which this one does no more.
    leader = await leader_of(group.controllers)
    members = leader.state.groups["broker-g"]
    leader.state.groups["broker-g"] = replace(members, in_sync=frozenset({1, 2}))
    await a.kill()
    learner = await group.start("b", store={**SYNC, "async_learner": True})
    with pytest.raises(AssertionError):
        await wait_until(lambda: learner.role.role is Role.MASTER, timeout_s=2)
    again = await group.start("a", store=SYNC)
    await wait_until(lambda: again.role.role is Role.MASTER, timeout_s=60)


async def test_a_broker_whose_id_was_taken_says_so_and_is_no_master(group: Group) -> None:
    """As one that was stopped for long while its copied directory was started elsewhere."""
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [b"1"])
    leader = await leader_of(group.controllers)
    assert a.controllers is not None
    agent = a.controllers.agent
    other = Heartbeat(
        broker_name="broker-g", broker_id=agent.broker_id, address="127.0.0.1:1", timeout_ms=60_000
    )
    leader._masters.liveness.beat(other, leader._masters.now_ms)
    await wait_until(lambda: a.role.role is Role.SLAVE, timeout_s=60)
    assert "that of the broker at 127.0.0.1:1, which lives" in a.role.reason
    end = a.store.log.end
    assert (await group.send(a, b"no")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert a.store.log.end == end
    leader._masters.liveness.closed("broker-g", agent.broker_id, leader._masters.now_ms)
    await wait_until(lambda: a.role.role is Role.MASTER, timeout_s=60)
    await group.sent(a, [b"2"])


@pytest.mark.parametrize(
    ("master", "ha"),
    [
        ("10.0.0.1:10911", "10.0.0.1:10912"),
        ("[::1]:1", "[::1]:2"),
        ("h:65534", "h:65535"),
        ("h:65535", ""),
        ("h:²", ""),
        ("h:0", ""),
        ("h:" + "1" * 6000, ""),
        (":1", ""),
        ("h", ""),
        ("", ""),
    ],
)
def test_the_ha_port_lies_behind_the_other(master: str, ha: str) -> None:
    assert ha_address_behind(master) == ha


async def test_a_master_without_a_lease_refuses_before_it_stores(group: Group) -> None:
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [b"1"])
    await group.controllers[0].stop()
    end = a.store.log.end

    async def refused() -> bool:
        reply = await group.send(a, b"too late")
        return reply.code not in (
            0,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
        )  # stored in the moment in which the lease ended

    async with asyncio.timeout(60):
        while not await refused():
            end = a.store.log.end
            await asyncio.sleep(0.02)
    assert a.store.log.end == end
    reply = await group.send(a, b"too late")
    assert (reply.code, "lease" in (reply.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True), reply


async def test_a_master_past_its_lease_acknowledges_nothing(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that is stopped between the look at the lease and the answer."""
    await group.begin()
    a = await group.start("a", store={"slave_timeout": 200})
    await group.sent(a, [b"1"])
    await group.controllers[0].stop()
    assert a.controllers is not None
    mode = a.controllers.agent.mode
    await wait_until(lambda: mode.shortage, timeout_s=60)
    monkeypatch.setattr(AutoSwitchMode, "shortage", None)
    end = a.store.log.end
    for properties in ("UNIQ_KEY\x01U\x02", "UNIQ_KEY\x01U\x02WAIT\x01false\x02"):
        request = send_request("t", b"too late", properties=properties)
        reply = await group.client.invoke(a.address, request, timeout_s=60)
        assert a.store.log.end > end
        assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        end = a.store.log.end


async def test_a_flush_that_ends_after_the_lease_acknowledges_nothing(group: Group) -> None:
    """SYNC_FLUSH, and a group that waits for no replica: the disk's verdict is the last one."""
    await group.begin()
    changes = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 60_000}
    a = await group.start("a", store=changes)
    await group.sent(a, [b"1"])
    sync, may_end = a.store.log.sync_pinned, threading.Event()

    def slow(bases: list[int], start: int, end: int) -> None:
        may_end.wait(60)
        sync(bases, start, end)

    a.store.log.sync_pinned = slow  # type: ignore[method-assign]
    try:
        sent = asyncio.create_task(
            group.client.invoke(
                a.address, send_request("t", b"in flight", properties="UNIQ_KEY\x01U\x02"), timeout_s=60
            )
        )
        await wait_until(lambda: a.store.unflushed_bytes)
        await group.controllers[0].stop()
        assert a.controllers is not None
        mode = a.controllers.agent.mode
        await wait_until(lambda: mode.shortage, timeout_s=60)
    finally:
        may_end.set()
    reply = await sent
    assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert "lease" in (reply.remark or "")


async def test_a_restarted_master_begins_another_epoch(group: Group) -> None:
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [b"1", b"2"])
    await a.kill()
    again = await group.start("a")
    await wait_until(lambda: again.role.role is Role.MASTER, timeout_s=60)
    assert again.role.epoch > 1
    await group.sent(again, [b"3"])
    await wait_until(lambda: again.store.max_offset("t", 0) == 3, "confirmed messages are seen", timeout_s=60)


async def test_a_master_whose_disk_failed_gives_way(group: Group) -> None:
    await group.begin()
    a = await group.start("a", store=SYNC)
    b = await group.start("b", store=SYNC)
    await group.sent(a, [b"1"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    a.store.writability.fail(StoreError("the disk is broken", path="/dev/none"))
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    await group.sent(b, [b"2"])


async def test_a_broker_with_a_new_disk_is_a_new_member(group: Group, tmp_path: Path) -> None:
    await group.begin()
    a = await group.start("a", store=SYNC)
    b = await group.start("b", store=SYNC)
    await group.sent(a, [b"%d" % number for number in range(20)])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await b.stop()
    shutil.rmtree(tmp_path / "b")
    again = await group.start("b", store=SYNC)
    await wait_until(lambda: group.members() == {1, 3}, "it has another id", timeout_s=60)
    await same(a, again)
    await wait_until(
        lambda: again.store.max_offset("t", 0) == 20, "confirmed messages are seen", timeout_s=60
    )
    await a.kill()
    await wait_until(lambda: again.role.role is Role.MASTER, "it may lead", timeout_s=60)
    await group.sent(again, [b"on"])


async def test_a_learner_follows_and_never_enters_the_set(group: Group) -> None:
    await group.begin()
    a = await group.start("a")
    learner = await group.start("b", store={"async_learner": True})
    await group.sent(a, [b"1", b"2"])
    await same(a, learner)
    await asyncio.sleep(0.2)
    assert group.members() == {1}


async def test_a_group_continues_when_the_controller_leader_dies(group: Group) -> None:
    await group.begin(3)
    a = await group.start("a", store=SYNC)
    await group.start("b", store=SYNC)
    await group.sent(a, [b"1"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    leader = await leader_of(group.controllers)
    group.controllers.remove(leader)
    await leader.stop()
    await group.sent(a, [b"2", b"3"])
    assert a.role.epoch == 1


async def test_too_few_members_refuse_a_message(group: Group) -> None:
    await group.begin()
    a = await group.start(
        "a", store={**SYNC, "in_sync_replicas": 2, "min_in_sync_replicas": 2, "total_replicas": 2}
    )
    async with asyncio.timeout(60):
        while "lease" in ((reply := await group.send(a, b"alone")).remark or ""):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "replicas are in sync" in (reply.remark or "")
    await group.start("b", store=SYNC)
    await group.sent(a, [b"together"])


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for config, store in (
        ({"enable_controller_mode": True}, {}),
        ({"enable_controller_mode": True, "controller_addr": "nowhere"}, {}),
        ({"enable_controller_mode": True, "controller_addr": "h:1", "enable_slave_acting_master": True}, {}),
        ({"enable_controller_mode": True, "controller_addr": "h:1"}, {"ha_master_address": "h:2"}),
    ):
        with pytest.raises(ConfigError):
            make_broker(tmp_path, store=store, **config)


async def test_consumers_see_what_is_confirmed_and_nothing_else(group: Group) -> None:
    """What only a master has may be lost: a consumer that read it would skip the record that takes its offset."""
    await group.begin(1)
    a, b = await group.start("a", store=SYNC), await group.start("b", store=SYNC)
    await group.sent(a, [b"1"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await wait_until(lambda: a.store.max_offset("t", 0) == 1, timeout_s=60)
    assert b.controllers is not None
    stopped = b.controllers.agent.mode._follower
    stopped._acknowledge = lambda connection: None  # type: ignore[method-assign]  # it replicates without acknowledging
    sending = asyncio.create_task(group.send(a, b"2"))
    await wait_until(lambda: a.store.queue("t", 0).max_offset == 2, timeout_s=60)
    await wait_until(lambda: b.store.log.end == a.store.log.end, timeout_s=60)
    assert a.store.max_offset("t", 0) == 1
    del stopped._acknowledge  # type: ignore[method-assign]
    await wait_until(lambda: a.store.max_offset("t", 0) == 2, timeout_s=60)
    await sending


async def test_what_was_not_confirmed_before_a_restart_is_not_seen_until_it_is(group: Group) -> None:
    """Only this broker may have it: who reads it and then follows another master has read what never was."""
    await group.begin(1)
    a, b = await group.start("a", store=SYNC), await group.start("b", store=SYNC)
    await group.sent(a, [b"1"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await wait_until(lambda: a.store.max_offset("t", 0) == 1, timeout_s=60)
    checkpoints = a.store._files.checkpoints
    await wait_until(lambda: checkpoints.current.confirm_offset == a.store.log.end, timeout_s=60)
    assert b.controllers is not None
    stopped = b.controllers.agent.mode._follower
    stopped._acknowledge = lambda connection: None  # type: ignore[method-assign]  # it replicates without acknowledging
    sending = asyncio.create_task(group.send(a, b"2"))
    await wait_until(lambda: a.store.next_offset("t", 0) == 2, timeout_s=60)
    await a.kill()
    await asyncio.gather(sending, return_exceptions=True)
    for controller in group.controllers:
        await controller.stop()
    again = await group.start("a", store=SYNC)
    assert again.store.next_offset("t", 0) == 2
    assert again.store.max_offset("t", 0) == 1
    pulled = again.store.get_messages("t", 0, 0, count_max=9)
    assert len(records_of(RemotingCommand(0, body=bytes(pulled.body)))) == 1


async def test_a_heartbeat_of_a_slave_takes_nothing_back(group: Group) -> None:
    """A report below one before says that something was lost: the master would have it leave the set."""
    await group.begin(1)
    a = await group.start("a", store=SYNC)
    b = await group.start("b", store={**SYNC, "ha_send_heartbeat_interval": 50})
    await group.sent(a, [b"1"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await group.sent(a, [b"2", b"3"])
    await same(a, b)
    assert a.controllers is not None
    assert b.controllers is not None
    follower, mode = b.controllers.agent.mode._follower, a.controllers.agent.mode
    (slave,) = mode._slaves
    await wait_until(lambda: slave.acknowledged == a.store.log.end, timeout_s=60)
    # As long as its master's frames did not bring the confirmation of the last ones.
    monotonic = follower._last_write_s
    b.store.durability._confirmed = 0
    reports = 0
    while reports < 10:
        await wait_until(lambda before=monotonic: follower._last_write_s > before, timeout_s=60)  # type: ignore[misc]
        monotonic, reports = follower._last_write_s, reports + 1
        assert slave.acknowledged == a.store.log.end
        assert group.members() == {1, 2}


async def test_a_master_that_cannot_serve_a_kind_gives_way_to_one_that_can(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.begin()
    first = await group.start("first", store=SYNC)
    second = await group.start("second", store=SYNC)
    await group.sent(first, [b"one"])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)

    async def fail() -> None:
        raise StoreError("its files are damaged")

    (timer,) = (each for each in second.features if each.name == "timer")
    monkeypatch.setattr(timer, "take_over", fail)
    ext = {"clusterName": "", "brokerName": "broker-g", "brokerId": "2", "designateElect": "true"}
    reply = await group.client.invoke(
        group.controllers[0].address, RemotingCommand(RequestCode.CONTROLLER_ELECT_MASTER, ext), timeout_s=60
    )
    assert reply.code == 0, reply
    await wait_until(lambda: "timer" in second._serving.parts.unserved.reasons, timeout_s=60)
    await wait_until(lambda: group.master() is first, timeout_s=60)
    await group.sent(first, [b"two"])
    assert first.role.epoch >= 3
