"""The lease of a master of a controller group: without it nothing is stored or acknowledged."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aerobee.broker.replication.auto_switch_mode import NO_LEASE, AutoSwitchMode
from aerobee.broker.state.role import Role
from aerobee.remoting.codes import ResponseCode
from aerobee.store.files.config import FlushDiskType
from tests.integration.broker_calls import send_request
from tests.integration.controller_group import Group
from tests.waiting import wait_until


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
