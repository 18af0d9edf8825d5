"""Recurring schedules after mastership goes from broker A to B and back to A (docs/replication.md)."""

from __future__ import annotations

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.message import decode_record
from aerobee.property_names import SCHEDULE_TICK
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.message_store import MessageStore
from tests.integration.failover_pair import Failover, send
from tests.integration.replica_pair import log_bytes, same
from tests.waiting import wait_until

INTERVAL_MS = 300


async def create(failover: Failover, broker: Broker) -> None:
    ext = {"name": "s", "topic": "t", "intervalMs": str(INTERVAL_MS)}
    reply = await failover.ask(broker, RemotingCommand(RequestCode.AEROBEE_CREATE_SCHEDULE, ext, b"x"))
    assert reply.code == 0, reply


def ticks(broker: Broker) -> list[int]:
    """The ticks in the topic, in the order of the queue that has them."""
    found = []
    for (topic, _), queue in broker.store.queues.items():
        for offset in range(queue.max_offset if topic == "t" else 0):
            entry = queue.entry(offset)
            assert isinstance(entry, tuple)
            properties = decode_record(broker.store.log.read(entry[0], entry[1])).properties
            if SCHEDULE_TICK in properties:
                found.append(int(properties[SCHEDULE_TICK]))
    return found


def check(broker: Broker) -> None:
    found = ticks(broker)
    assert found == [found[0] + number * INTERVAL_MS for number in range(len(found))]


async def test_a_schedule_continues_at_each_master_without_a_gap(failover: Failover) -> None:
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "the topic")
    await create(failover, a)
    for master, other in ((a, b), (b, a), (a, b)):
        before = len(ticks(master))
        await wait_until(lambda: len(ticks(master)) > before + 2, "ticks")  # noqa: B023
        await failover.switch(other)
    await wait_until(lambda: len(ticks(b)) > 10, "all masters' ticks")
    check(b)


async def test_ticks_that_were_cut_off_are_delivered_again(failover: Failover) -> None:
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "the topic")
    await create(failover, a)
    await wait_until(lambda: len(ticks(a)) > 2, "ticks")
    await same(a, b)
    failover.lead(b)  # while A still believes that it leads
    before = len(ticks(a))
    await wait_until(lambda: len(ticks(a)) > before + 1 and len(ticks(b)) > before, "both deliver")
    a.replication.become_slave(b.identity.ha_address, failover.epoch, master_address=b.address)
    await wait_until(lambda: log_bytes(a)[: a.store.log.end] == log_bytes(b)[: a.store.log.end], "one log")
    await failover.switch(a)
    before = len(ticks(a))
    await wait_until(lambda: len(ticks(a)) > before + 1, "A delivers again")
    check(a)


async def test_a_tick_whose_message_was_cut_off_is_delivered(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A's log ends between the record of a tick and its message."""
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "the topic")
    await create(failover, a)
    await wait_until(lambda: len(ticks(a)) > 1, "ticks")
    append, refused = MessageStore.append, []

    def refuse(store: MessageStore, message, **named):  # type: ignore[no-untyped-def]
        if store is a.store and message.topic in ("t", "rmq_sys_aerobee_schedules") and refused:
            raise RuntimeError("this broker is lost")
        if store is a.store and message.topic == "t":
            refused.append(message)
            raise RuntimeError("this broker is lost")
        return append(store, message, **named)

    monkeypatch.setattr(MessageStore, "append", refuse)
    await wait_until(lambda: refused, "a tick's record without its message")
    lost = int(refused[0].properties.decode().split(f"{SCHEDULE_TICK}\x01")[1].split("\x02")[0])
    assert lost not in ticks(a)
    await failover.switch(b)
    await wait_until(lambda: lost in ticks(b), "B delivers it")
    await wait_until(lambda: ticks(b)[-1] > lost + INTERVAL_MS, "B continues")
    check(b)
