"""What was under way at a master continues at the replica that is promoted: transactions, POP, delay levels, timers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.clock import SystemClock
from aerobee.message import decode_records
from aerobee.network import AsyncioNetwork
from aerobee.remoting.body.heartbeat import HeartbeatData, ProducerData
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer
from tests.integration.broker_calls import send_request
from tests.integration.controller_group import SYNC, Group
from tests.integration.pop_requests import ack, change, pop
from tests.integration.promoted_pair import HALF, keys
from tests.integration.replica_pair import Pair, same
from tests.waiting import wait_until

COMMIT, ROLLBACK = 8, 12
CHECKS = {"transaction_time_out": 300, "transaction_check_interval": 300}


class World:
    """A master with a replica that has everything, until the master is killed and the other promoted."""

    def __init__(self, client: RemotingClient, pair: Pair, group: Group) -> None:
        self.client = client
        self._pair = pair
        self._group = group
        self._with_controllers = False
        self.first: Broker
        self.second: Broker

    async def begin(self, mode: str) -> None:
        self._with_controllers = mode == "controllers"
        if not self._with_controllers:
            self.first = await self._pair.start("first", **CHECKS)
            self.second = await self._pair.start_slave(self.first, "second", **CHECKS)
            return
        await self._group.begin()
        self.first = await self._group.start("first", store=SYNC, **CHECKS)
        self.second = await self._group.start("second", store=SYNC, **CHECKS)
        await self._group.sent(self.first, [b"begin"])
        await wait_until(lambda: self._group.members() == {1, 2}, timeout_s=60)

    async def promote(self) -> Broker:
        """Kill the master; the other one takes over."""
        await same(self.first, self.second)
        # What a slave requests every second besides the log.
        first, second = self.first, self.second
        await wait_until(lambda: second.topics.topics == first.topics.topics, timeout_s=60)
        await wait_until(lambda: offsets(second) == offsets(first), timeout_s=60)
        await self.first.kill()
        if self._with_controllers:
            await self._group.has_master(other_than=self.first)
            await self._group.sent(self.second, [b"again"])
        else:
            self.second.replication.become_master(1)
        return self.second

    async def ask(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        reply = await self.client.invoke(broker.address, request, timeout_s=60)
        assert reply.code == 0, reply
        return reply


@pytest.fixture
async def asked() -> dict[str, RemotingCommand]:
    """Transactions that a broker asked about, by id, with its question."""
    return {}


@pytest.fixture
async def world(tmp_path: Path, asked: dict[str, RemotingCommand]) -> AsyncIterator[World]:
    def on_check(peer: Peer, request: RemotingCommand) -> None:
        (record,) = decode_records(request.body)
        asked[record.properties["UNIQ_KEY"]] = request

    client = RemotingClient(
        clock=SystemClock(),
        network=AsyncioNetwork(),
        handlers={RequestCode.CHECK_TRANSACTION_STATE.value: on_check},
    )
    async with AsyncExitStack() as stack:
        group = Group(tmp_path, client, stack)
        pair = Pair(tmp_path, client)
        yield World(client, pair, group)
        await group.stop()
        for broker in reversed(pair.brokers):
            await broker.stop()
        await client.close()


def offsets(broker: Broker) -> object:
    return broker.offsets.to_dict()["offsetTable"]


async def half(world: World, broker: Broker, key: str) -> RemotingCommand:
    """Send a half message; return what ends it, but for the decision."""
    properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
    request = send_request("orders", key.encode(), properties=properties)
    assert request.ext is not None
    request.ext |= {"a": "payers", "f": str(HALF)}
    reply = await world.ask(broker, request)
    assert reply.ext is not None
    return RemotingCommand(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "payers",
            "tranStateTableOffset": reply.ext["queueOffset"],
            "commitLogOffset": str(int(reply.ext["msgId"][-16:], 16)),
            "commitOrRollback": "0",
            "fromTransactionCheck": "false",
            "msgId": key,
            "transactionId": key,
        },
    )


def decided(end: RemotingCommand, decision: int) -> RemotingCommand:
    assert end.ext is not None
    return RemotingCommand(end.code, {**end.ext, "commitOrRollback": str(decision)})


@pytest.mark.parametrize("mode", ["classic", "controllers"])
async def test_transactions_continue(world: World, mode: str, asked: dict[str, RemotingCommand]) -> None:
    await world.begin(mode)
    ends = {
        key: await half(world, world.first, key) for key in ("done", "undone", "late", "lost", "forgotten")
    }
    await world.ask(world.first, decided(ends["done"], COMMIT))
    await world.ask(world.first, decided(ends["undone"], ROLLBACK))
    assert keys(world.first, "orders") in ([], ["done"])  # seen when the replica has it
    second = await world.promote()
    await world.ask(second, decided(ends["late"], COMMIT))
    await world.ask(second, decided(ends["lost"], ROLLBACK))
    await wait_until(lambda: keys(second, "orders") == ["done", "late"], timeout_s=60)
    # The last one is undecided: the promoted broker checks it and follows the answer.
    beat = HeartbeatData(client_id="payer@1", producer_data_set=(ProducerData("payers"),))
    await world.ask(second, RemotingCommand(RequestCode.HEART_BEAT, body=beat.encode()))
    await wait_until(lambda: asked, timeout_s=60)
    assert set(asked) == {"forgotten"}
    question = asked["forgotten"].ext
    assert question is not None
    answer = decided(ends["forgotten"], COMMIT)
    assert answer.ext is not None
    answer.ext |= {name: question[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    answer.ext["fromTransactionCheck"] = "true"
    await world.ask(second, answer)
    await wait_until(lambda: keys(second, "orders") == ["done", "late", "forgotten"], timeout_s=60)
    assert keys(second, "orders").count("done") == 1


@pytest.mark.parametrize("mode", ["classic", "controllers"])
async def test_delayed_messages_arrive_once(world: World, mode: str) -> None:
    await world.begin(mode)

    async def send_delayed(broker: Broker, name: str, in_ms: int, level: int) -> None:
        due_ms = broker.clock.now_ms() + in_ms
        for kind, delay in (
            ("level", f"DELAY\x01{level}\x02"),
            ("timer", f"TIMER_DELIVER_MS\x01{due_ms}\x02"),
        ):
            await world.ask(
                broker, send_request("later", b"x", properties=f"UNIQ_KEY\x01{name}{kind}\x02{delay}")
            )

    await send_delayed(world.first, "early", 1_000, 1)
    await wait_until(lambda: len(keys(world.first, "later")) == 2, timeout_s=60)
    await send_delayed(world.first, "after", 5_000, 2)
    second = await world.promote()
    await wait_until(lambda: len(keys(second, "later")) >= 4, timeout_s=60)
    assert sorted(keys(second, "later")) == ["afterlevel", "aftertimer", "earlylevel", "earlytimer"]


@pytest.mark.parametrize("mode", ["classic", "controllers"])
async def test_what_pops_have_in_hand_stays_in_hand(world: World, mode: str) -> None:
    """Acknowledged messages are gone, those in hand can be acknowledged, and the others come again, not before their time."""
    await world.begin(mode)
    names = ["gone", "settled", "longer", "again"]
    for name in names:
        await world.ask(
            world.first, send_request("jobs", name.encode(), properties=f"UNIQ_KEY\x01{name}\x02")
        )
    await wait_until(lambda: world.first.store.max_offset("jobs", 0) == 4, timeout_s=60)
    taken = {
        message.body.decode(): message
        for message in await pop(world.client, world.first, "jobs", queue=0, invisible_ms=8_000)
    }
    assert sorted(taken) == sorted(names)
    assert await ack(world.client, world.first, taken["gone"]) == 0
    begin_s = world.first.clock.monotonic()
    second = await world.promote()
    assert await ack(world.client, second, taken["settled"]) == 0
    await change(world.client, second, taken["longer"], 25_000)
    seen: list[str] = []

    async def until(count: int) -> None:
        while len(seen) < count:
            found = await pop(world.client, second, "jobs", invisible_ms=60_000)
            seen.extend(each.body.decode() for each in found)
            await second.clock.sleep(0.1)

    await until(1)
    assert second.clock.monotonic() - begin_s > 7, "it came before its invisible time expired"
    assert seen == ["again"]
    await until(2)
    assert seen == ["again", "longer"]
