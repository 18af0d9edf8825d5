"""The replication port of a master of a controller group: handshakes, claims of an id, and what a replica may confirm."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.broker.replication.controller_agent import ha_address_behind
from aerobee.broker.replication.unproven_connections import SLAVES_MAX
from aerobee.ha.stream.epoch_file import EpochEntry
from aerobee.ha.stream.handshake import Handshake, HandshakeReply
from aerobee.ha.stream.transfer_header import StateReport, TransferFrame
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from tests.integration.controller_group import SYNC, Group, same
from tests.integration.replica_pair import log_bytes
from tests.waiting import wait_until


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
