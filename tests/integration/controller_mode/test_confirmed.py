"""Consumers of a controller group see what is confirmed, and nothing else."""

from __future__ import annotations

import asyncio

from aerobee.remoting.command import RemotingCommand
from tests.integration.broker_calls import records_of
from tests.integration.controller_group import SYNC, Group, same
from tests.waiting import wait_until


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
