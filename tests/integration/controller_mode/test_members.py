"""Brokers of a controller group in one process, over real sockets: ids, roles, failover, rejoin, leases."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.replication.bulk_transfer import BULK_LAG_BYTES, BULK_RUN_BYTES
from aerobee.broker.state.role import Role
from aerobee.errors import ConfigError, StoreError
from aerobee.ha.controller.liveness import Heartbeat
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import loads
from tests.integration.broker_calls import make_broker
from tests.integration.certificates import Identity, identity
from tests.integration.controller_group import SYNC, Group, same
from tests.integration.controller_quorum import leader_of
from tests.waiting import wait_until


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


async def test_a_member_far_behind_takes_large_frames(group: Group) -> None:
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [bytes((number,)) * 500_000 for number in range(45)])
    assert a.store.log.end - BULK_LAG_BYTES > BULK_RUN_BYTES
    b = await group.start("b")
    await same(a, b)
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await wait_until(lambda: b.store.durability.confirmed == a.store.log.end)
    await group.sent(a, [b"3", b"4"])
    await same(a, b)


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
