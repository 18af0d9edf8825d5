"""Messages that a deposed master copied to a retry topic when a cut of its log takes the copies off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.pop.check_point import CheckPoint
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.pop.revive_queue import ReviveQueue
from aerobee.broker.replication.metadata_sync import MetadataSync
from aerobee.system_names import REVIVE_GROUP
from tests.integration.failover_pair import Failover, break_feature, send
from tests.integration.pop_requests import pop
from tests.integration.replica_pair import log_bytes, same
from tests.waiting import wait_until


def retry_bodies(broker: Broker) -> list[bytes]:
    """What lies in retry topics, in order."""
    found: list[bytes] = []
    for name in list(broker.topics.topics):
        if name.startswith("%RETRY%"):
            for queue_id in range(4):
                end = broker.store.max_offset(name, queue_id)
                for offset in range(end):
                    result = broker.store.get_messages(name, queue_id, offset, count_max=1)
                    found += [body for body in (b"one", b"two") if body in result.body]
    return found


async def test_messages_whose_copies_were_cut_off_are_handed_out_again(
    failover: Failover,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await failover.begin()
    a, b, client = failover.a, failover.b, failover.pair.client
    held: list[Callable[[bytes], bool]] = [lambda body: True]
    due = ReviveQueue.due

    def due_unless_held(self: ReviveQueue, *args: Any) -> CheckPoint | None:
        point = due(self, *args)
        return None if point is not None and held else point

    async def never(_: MetadataSync) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ReviveQueue, "due", due_unless_held)
    (feature,) = (each for each in a.features if isinstance(each, Pop))
    for key in ("one", "two"):
        await send(failover, a, key)
    assert len(await pop(client, a, "t", queue=0, count=8, invisible_ms=2_000)) == 2
    await wait_until(lambda: feature.reviver.record_count > 0, "the check point is read", timeout_s=60)
    (group,) = a.offsets.groups_of("t")
    await wait_until(
        lambda: b.groups.get(group) is not None and b.topics.get("t") is not None,
        "B knows both",
        timeout_s=60,
    )
    await same(a, b)
    monkeypatch.setattr(MetadataSync, "_copy_offsets", never)  # both failovers lie between two copies
    break_feature(monkeypatch, b, "pop")  # B is lost before it hands them out
    failover.lead(b)  # while A still believes that it leads
    held.clear()
    await wait_until(lambda: len(retry_bodies(a)) == 2, "A hands out again", timeout_s=60)
    settled = {
        queue_id: offset
        for topic, group, queue_id, offset in a.offsets.all_offsets()
        if group == REVIVE_GROUP and topic.startswith("rmq_sys_REVIVE_LOG_")
    }
    assert settled
    await send(failover, b, "other")
    a.replication.become_slave(b.identity.ha_address, failover.epoch, master_address=b.address)
    await wait_until(lambda: log_bytes(a) == log_bytes(b), "one log", timeout_s=60)
    assert retry_bodies(a) == [], "the copies were cut off"
    failover.lead(a)
    await wait_until(lambda: len(retry_bodies(a)) == 2, "A hands out again", timeout_s=30)
    assert sorted(retry_bodies(a)) == [b"one", b"two"]
