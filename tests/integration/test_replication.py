"""A master and its slave in one process, over real sockets: the log is copied, and what happens when one of them goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.replication.bulk_transfer import BULK_LAG_BYTES, BULK_RUN_BYTES
from aerobee.broker.replication.classic_mode import ClassicMode
from aerobee.errors import ConfigError
from aerobee.ha.stream.transfer_header import encode_report
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.integration.broker_calls import make_broker, send_request
from tests.integration.replica_pair import SLAVE, Pair, figures, log_bytes, same
from tests.waiting import wait_until


async def test_messages_arrive_at_the_slave_as_they_come(pair: Pair) -> None:
    master = await pair.start("master")
    await pair.send(master, 3)
    slave = await pair.start_slave(master)
    await same(master, slave)
    await pair.send(master, 20)
    await same(master, slave)
    assert slave.store.max_offset("t", 0) == 23
    await wait_until(lambda: master.replication.state().replicas[0].acknowledged == master.store.log.end)
    told, of_slave = await figures(pair, master), await figures(pair, slave)
    assert (told["haRole"], told["haReplicas"].endswith(" lag=0 in-sync")) == ("master", True)
    assert (of_slave["haRole"], of_slave["haBehind"], of_slave["haTrouble"]) == ("slave", "0", "")
    assert of_slave["haMaster"] == master.identity.ha_address
    refused = await pair.client.invoke(slave.address, send_request("t"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_an_empty_slave_takes_the_whole_history_of_several_files(pair: Pair) -> None:
    small = {"mapped_file_size_commit_log": 16_384}
    master = await pair.start("master", store=small)
    await pair.send(master, 150, size=400)
    assert len(master.store.log.segments) > 3
    slave = await pair.start_slave(master, store=small)
    await same(master, slave)
    assert slave.store.min_offset("t", 0) == 0
    assert slave.store.max_offset("t", 0) == 150


@pytest.mark.parametrize("key", ["", "a key of this test"])
async def test_a_slave_far_behind_takes_large_frames(pair: Pair, key: str) -> None:
    """With a key bytes pass through the connection that checked it."""
    store = {"mapped_file_size_commit_log": 8 << 20, "ha_shared_key": key}
    master = await pair.start("master", store=store)
    await pair.send(master, 45, size=500_000)
    assert master.store.log.end - BULK_LAG_BYTES > BULK_RUN_BYTES
    slave = await pair.start_slave(master, store=store)
    await same(master, slave)
    await pair.send(master, 3)
    await same(master, slave)
    assert slave.store.max_offset("t", 0) == 48
    (replica,) = master.replication.state().replicas
    await wait_until(lambda: master.replication.state().replicas[0].acknowledged == master.store.log.end)
    assert replica.sent > BULK_RUN_BYTES, "one connection brought it all"


async def test_a_slave_resumes_replication_at_its_offset(pair: Pair) -> None:
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    await pair.send(master, 10)
    await same(master, slave)
    await slave.stop()
    await pair.send(master, 10)
    slave = await pair.start_slave(master)
    await same(master, slave)
    assert slave.store.max_offset("t", 0) == 20


async def test_a_log_that_parted_is_cut_and_what_was_cut_is_kept(pair: Pair, tmp_path: Path) -> None:
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    await pair.send(master, 50)
    await same(master, slave)
    common = master.store.log.end
    await slave.stop()
    # Both continue alone, as masters do that do not know of each other.
    alone = await pair.start("slave")
    await pair.send(alone, 30, topic="mine")
    mine = log_bytes(alone)[common:]
    await alone.stop()
    await pair.send(master, 200)
    slave = await pair.start_slave(master)
    await same(master, slave)
    kept = sorted((tmp_path / "slave" / "cut").iterdir())
    assert b"".join(path.read_bytes() for path in kept) == mine
    assert slave.store.max_offset("mine", 0) == 0
    assert slave.store.max_offset("t", 0) == 250
    # The store is whole also for a start that trusts nothing.
    await slave.kill()
    slave = await pair.start_slave(master, store={"check_queues_on_start": True})
    await same(master, slave)
    assert slave.store.max_offset("t", 0) == 250


async def test_a_slave_that_has_more_than_its_master_is_cut_back(pair: Pair, tmp_path: Path) -> None:
    master = await pair.start("master")
    slave = await pair.start_slave(master)
    await pair.send(master, 50)
    await same(master, slave)
    await slave.stop()
    alone = await pair.start("slave")
    await pair.send(alone, 5)
    await alone.stop()
    slave = await pair.start_slave(master)
    await same(master, slave)
    assert list((tmp_path / "slave" / "cut").iterdir())
    await pair.send(master, 1)
    await same(master, slave)


async def test_a_slave_of_another_group_is_not_cut_to_nothing(pair: Pair) -> None:
    other = await pair.start("slave")
    await pair.send(other, 50)
    before = log_bytes(other)
    await other.stop()
    master = await pair.start("master")
    await pair.send(master, 60)
    slave = await pair.start_slave(master)

    def trouble() -> str:
        following = slave.replication.state().following
        return following.trouble if following is not None else ""

    await wait_until(lambda: "no record in common" in trouble())
    assert log_bytes(slave) == before


async def test_sync_replication_answers_when_the_slave_has_it(pair: Pair) -> None:
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "total_replicas": 2, "slave_timeout": 300}
    master = await pair.start("master", store=sync)
    late = await pair.client.invoke(master.address, send_request("t"))
    assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    slave = await pair.start_slave(master)
    await same(master, slave)
    await pair.send(master, 30)
    assert slave.store.log.end == master.store.log.end
    await slave.stop()
    late = await pair.client.invoke(master.address, send_request("t"))
    assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    unheld = await pair.client.invoke(
        master.address, send_request("t", properties="UNIQ_KEY\x01U\x02WAIT\x01false\x02")
    )
    assert unheld.code == 0


async def test_how_many_replicas_are_waited_for_changes_at_once(pair: Pair) -> None:
    sync = {"broker_role": "SYNC_MASTER", "total_replicas": 2, "slave_timeout": 60_000}
    master = await pair.start("master", store=sync)

    async def wait_for(copies: int) -> None:
        request = RemotingCommand(
            RequestCode.UPDATE_BROKER_CONFIG, body=f"inSyncReplicas={copies}\n".encode()
        )
        reply = await pair.client.invoke(master.address, request)
        assert (reply.code, reply.remark) == (0, None)

    await pair.send(master, 1)  # 1 is the default: it waits for no replica
    await wait_for(2)
    waiting = asyncio.create_task(pair.client.invoke(master.address, send_request("t"), timeout_s=60))
    await wait_until(lambda: master.store.next_offset("t", 0) == 2)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await wait_for(1)
    assert (await waiting).code == 0
    await wait_for(2)
    waiting = asyncio.create_task(pair.client.invoke(master.address, send_request("t"), timeout_s=60))
    await wait_until(lambda: master.store.next_offset("t", 0) == 3)
    slave = await pair.start_slave(master)
    assert (await waiting).code == 0
    assert slave.store.log.end == master.store.log.end


async def test_a_slave_confirms_no_byte_that_it_was_not_sent(pair: Pair) -> None:
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "slave_timeout": 1_000}
    master = await pair.start("master", store=sync)
    mode = master.replication._mode
    assert isinstance(mode, ClassicMode)
    host, _, port = master.identity.ha_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_report(0))
    await wait_until(lambda: mode._slaves and next(iter(mode._slaves))._sender is not None)
    slave = next(iter(mode._slaves))
    assert slave._sender is not None
    slave._sender.pause()
    answer = asyncio.create_task(pair.client.invoke(master.address, send_request("t")))
    await wait_until(lambda: master.store.log.end > 0)
    writer.write(encode_report(master.store.log.end))
    assert (await answer).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert await reader.read() == b"", "it is sent away"
    writer.close()


async def test_who_is_sent_away_again_and_again_is_one_line(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    master = await pair.start("master")
    host, _, port = master.identity.ha_address.rpartition(":")
    for _ in range(20):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(encode_report(1 << 40))  # far behind the log's end
        assert await reader.read() == b"", "it is sent away"
        writer.close()
    lines = [line for line in caplog.messages if "the connection of the slave at 127.0.0.1:" in line]
    assert 0 < len(lines) < 20, lines
    assert "it followed another master" in lines[0]


async def test_the_slave_is_made_the_master_and_the_old_one_follows_it(pair: Pair, tmp_path: Path) -> None:
    """The new master delivers pending messages, of a delay level and of a time; the old one drops unconfirmed ones."""
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "total_replicas": 2, "slave_timeout": 300}
    master = await pair.start("master", store=sync)
    slave = await pair.start_slave(master)
    await wait_until(lambda: bool(master.replication.state().replicas))
    await pair.send(master, 20)
    due_ms = master.clock.now_ms() + 6_000
    for number, delay in enumerate(("DELAY\x012\x02", f"TIMER_DELIVER_MS\x01{due_ms}\x02")):
        delayed = send_request("later", b"later", properties=f"UNIQ_KEY\x01L{number}\x02{delay}")
        reply = await pair.client.invoke(master.address, delayed)
        assert reply.code == 0, reply
    confirmed = master.store.log.end
    await slave.stop()
    unconfirmed = await pair.client.invoke(master.address, send_request("t", b"nobody has this"))
    assert unconfirmed.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    alone = log_bytes(master)[confirmed:]
    await master.kill()
    new = await pair.start("slave")
    await pair.send(new, 10)
    old = await pair.start_slave(new, "master")
    await wait_until(lambda: new.store.max_offset("later", 0) == 2, timeout_s=60)
    await same(new, old)
    assert new.store.max_offset("t", 0) == 30
    assert old.store.max_offset("t", 0) == 30
    kept = sorted((tmp_path / "master" / "cut").iterdir())
    assert b"".join(path.read_bytes() for path in kept) == alone


async def test_a_slave_that_becomes_master_while_it_runs_delivers_what_waits_and_stops_again(
    pair: Pair,
) -> None:
    async def delayed(broker: Broker, number: int, in_ms: int) -> None:
        due_ms = broker.clock.now_ms() + in_ms
        for kind, delay in enumerate(("DELAY\x012\x02", f"TIMER_DELIVER_MS\x01{due_ms}\x02")):
            properties = f"UNIQ_KEY\x01L{number}{kind}\x02{delay}"
            reply = await pair.client.invoke(
                broker.address, send_request("later", b"x", properties=properties)
            )
            assert reply.code == 0, reply

    first = await pair.start("first")
    second = await pair.start_slave(first, "second")
    await delayed(first, 0, 1_000)
    await wait_until(lambda: first.store.max_offset("later", 0) == 2, timeout_s=60)  # delivered by the first
    await delayed(first, 1, 6_000)
    await same(first, second)
    end = first.store.max_offset("later", 0)
    await first.stop()
    second.replication.become_master(1)
    await wait_until(lambda: second.store.max_offset("later", 0) >= 4, timeout_s=60)
    assert (end, second.store.max_offset("later", 0)) == (2, 4), "something was delivered twice"
    # It gives way to the first again, which delivers what the second left; the second delivers nothing meanwhile.
    await delayed(second, 2, 6_000)
    first = await pair.start("first", store=SLAVE, broker_id=1)
    first.replication.become_slave(second.identity.ha_address, 1, master_address=second.address)
    await same(second, first)
    second.replication.become_slave("127.0.0.1:1", 2)
    first.replication.become_master(2)
    second.replication.become_slave(first.identity.ha_address, 2, master_address=first.address)
    await wait_until(lambda: first.store.max_offset("later", 0) >= 6, timeout_s=60)
    await same(first, second)
    # And back, after it has led once before.
    await delayed(first, 3, 6_000)
    await same(first, second)
    await first.stop()
    second.replication.become_master(3)
    await wait_until(lambda: second.store.max_offset("later", 0) >= 8, timeout_s=60)
    assert second.store.max_offset("later", 0) == 8, "something was delivered twice"


async def test_with_acting_masters_too_few_replicas_refuse_a_message(pair: Pair) -> None:
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "total_replicas": 2}
    master = await pair.start("master", store=sync, enable_slave_acting_master=True)
    end = master.store.log.end
    refused = await pair.client.invoke(master.address, send_request("t"))
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "in-sync replicas not enough: 1 of 2 replicas are in sync",
    )
    assert master.store.log.end == end
    slave = await pair.start_slave(master)
    await same(master, slave)
    await wait_until(lambda: not master.replication.mode.shortage, "the slave is in sync", timeout_s=60)
    assert master.replication.state().replicas[0].is_in_sync
    await pair.send(master, 5)


@pytest.mark.parametrize(
    ("store", "config", "reason"),
    [
        (SLAVE, {}, "brokerRole is SLAVE and brokerId is 0"),
        ({}, {"broker_id": 1}, "brokerRole is ASYNC_MASTER and brokerId is 1"),
        ({"in_sync_replicas": 3, "total_replicas": 2}, {}, "inSyncReplicas is 3, but totalReplicas"),
        ({"min_in_sync_replicas": 2}, {}, "minInSyncReplicas is 2, above inSyncReplicas"),
        ({"ha_master_address": "here"}, {}, "haMasterAddress has 'here'"),
    ],
)
def test_contradictory_settings_are_refused(
    tmp_path: Path, store: dict[str, Any], config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_broker(tmp_path, store=store, **config)
