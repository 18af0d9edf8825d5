"""State beside the log after mastership goes from broker A to B and back to A: the table in docs/replication.md, line by line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.broker import Broker
from aerobee.clock import SystemClock
from aerobee.errors import StoreError
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.integration.broker_calls import send_request
from tests.integration.pop_requests import pop_request
from tests.integration.test_replication import Pair, figures, log_bytes, same
from tests.waiting import wait_until

WINDOW = {"dedup_window_millis": 600_000}


class Failover:
    """Brokers A and B with one log; the mastership goes to and fro while both processes live."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.epoch = 0
        self.a: Broker
        self.b: Broker

    async def begin(self, **config: Any) -> None:
        self.a = await self.pair.start("a", **config)
        self.b = await self.pair.start_slave(self.a, "b", **config)
        await self.pair.send(self.a, 1, topic="first")
        await same(self.a, self.b)

    def lead(self, broker: Broker) -> None:
        """It leads; the other one may not know it yet."""
        self.epoch += 1
        broker.replication.become_master(self.epoch)

    async def follow(self, broker: Broker, master: Broker) -> None:
        broker.replication.become_slave(master.identity.ha_address, self.epoch, master_address=master.address)
        await wait_until(lambda: log_bytes(broker) == log_bytes(master), "one log", timeout_s=60)
        await wait_until(lambda: served(master), "everything is served", timeout_s=60)

    async def switch(self, master: Broker) -> Broker:
        """`master` leads from now on, with all of the log; the other one follows."""
        other = self.b if master is self.a else self.a
        await same(other, master)
        self.lead(master)
        await self.follow(other, master)
        return master

    async def ask(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        return await self.pair.client.invoke(broker.address, request, timeout_s=60)


def served(broker: Broker) -> bool:
    return not broker._serving.parts.unserved.reasons


@pytest.fixture
async def failover(tmp_path: Path) -> AsyncIterator[Failover]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    pair = Pair(tmp_path, client)
    yield Failover(pair)
    for broker in reversed(pair.brokers):
        await broker.stop()
    await client.close()


async def keyed(failover: Failover, broker: Broker, key: str) -> tuple[bool, str]:
    """Send with a DEDUP_KEY; whether it was a repetition, and the message's queue offset."""
    request = send_request(
        "t", key.encode(), properties=f"UNIQ_KEY\x01{key}{failover.epoch}\x02DEDUP_KEY\x01{key}\x02"
    )
    reply = await failover.ask(broker, request)
    assert reply.code == 0, reply
    assert reply.ext is not None
    return reply.ext.get("duplicate") == "true", reply.ext["queueOffset"]


async def test_a_new_master_knows_the_dedup_keys_of_the_one_before(failover: Failover) -> None:
    await failover.begin(**WINDOW)
    a, b = failover.a, failover.b
    stored = await keyed(failover, a, "k1")
    assert stored[0] is False
    await failover.switch(b)
    assert await keyed(failover, b, "k1") == (True, stored[1])
    second = await keyed(failover, b, "k2")
    assert second[0] is False
    await failover.switch(a)
    assert await keyed(failover, a, "k1") == (True, stored[1])
    assert await keyed(failover, a, "k2") == (True, second[1])


async def test_a_dedup_key_of_a_message_that_was_cut_off_is_new(failover: Failover) -> None:
    await failover.begin(**WINDOW)
    a, b = failover.a, failover.b
    failover.lead(b)  # and A still believes that it is master
    lost = await keyed(failover, a, "lost")
    assert lost[0] is False
    kept = await keyed(failover, b, "kept")
    await failover.follow(a, b)
    await failover.switch(a)
    assert await keyed(failover, a, "kept") == (True, kept[1])
    again = await keyed(failover, a, "lost")
    assert again[0] is False, "nobody has the first one"
    assert await keyed(failover, a, "lost") == (True, again[1])


# --- a feature that cannot start


def break_feature(monkeypatch: pytest.MonkeyPatch, broker: Broker, name: str) -> None:
    """Its files cannot be read when the broker takes over."""

    async def take_over() -> None:
        raise StoreError("its file is damaged")

    (feature,) = (each for each in broker.features if each.name == name)
    monkeypatch.setattr(feature, "take_over", take_over)


HALF_SEND = {"a": "payers", "f": "4"}
KINDS = {
    "transactions": send_request(
        "t", b"x", properties="UNIQ_KEY\x01h\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
    ),
    "delay levels": send_request("t", b"x", properties="UNIQ_KEY\x01d\x02DELAY\x013\x02"),
    "timer": send_request("t", b"x", properties="UNIQ_KEY\x01t\x02TIMER_DELAY_SEC\x0160\x02"),
    "deduplication": send_request("t", b"x", properties="UNIQ_KEY\x01k\x02DEDUP_KEY\x01k\x02"),
}


@pytest.mark.parametrize("kind", [*KINDS, "pop"])
async def test_a_master_refuses_the_kind_that_it_cannot_serve(
    failover: Failover, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await failover.begin(**WINDOW)
    b = failover.b
    request = KINDS[kind] if kind in KINDS else pop_request(b, "first")
    if kind == "transactions":
        assert request.ext is not None
        request.ext |= HALF_SEND
    break_feature(monkeypatch, b, kind)
    failover.lead(b)
    unserved = b._serving.parts.unserved
    await wait_until(lambda: unserved.reasons.get(kind) == "its file is damaged", kind)
    await wait_until(lambda: set(unserved.reasons) <= {kind, "pop"}, "the others are served")
    assert (await failover.ask(b, send_request("t", b"an ordinary one"))).code == 0
    end = b.store.log.end
    reply = await failover.ask(b, request)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE, reply
    assert "its file is damaged" in (reply.remark or "")
    assert b.store.log.end == end, "nothing was stored"
    assert (await figures(failover.pair, b))["unservedKinds"].startswith(f"{kind}: its file is damaged")
    monkeypatch.undo()
    await wait_until(lambda: served(b), "it tries again", timeout_s=60)
    reply = await failover.ask(b, request)
    assert reply.code in (0, ResponseCode.PULL_NOT_FOUND, 210), reply


async def test_a_damaged_settled_file_costs_a_search_and_nothing_else(
    failover: Failover, tmp_path: Path
) -> None:
    await failover.begin()
    b = failover.b
    path = tmp_path / "b" / "config" / "transactionSettled.json"
    path.write_text("{")
    failover.lead(b)
    await wait_until(lambda: served(b), "everything is served", timeout_s=60)
    assert b._serving.parts.unserved.failed_count == 0
