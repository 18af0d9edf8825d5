"""POP at a broker over real sockets: pop, acknowledgement, change of invisible time, redelivery, order, restart."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.clock import AdvancingClock
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.files.config import StoreConfig
from tests.integration.broker_calls import STORE, send_request
from tests.integration.pop_requests import Popped, ack, ack_request, change, pop, pop_request, popped
from tests.waiting import wait_until

TOPIC = "TopicPop"
RETRY = "%RETRY%group_TopicPop"


def new_broker(path: Path, clock: AdvancingClock, **config: object) -> Broker:
    fields = {"bind_address": "127.0.0.1", "broker_ip1": "127.0.0.1", "listen_port": 0, **config}
    return Broker(
        BrokerConfig(broker_name="broker-a", **fields),  # type: ignore[arg-type]
        StoreConfig(store_path_root_dir=str(path), **STORE),
        clock=clock,
    )


@pytest.fixture
def clock() -> AdvancingClock:
    return AdvancingClock()


@pytest.fixture
async def client(clock: AdvancingClock) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=AdvancingClock(), network=AsyncioNetwork())
    yield client
    await client.close()


@pytest.fixture
async def broker(tmp_path: Path, clock: AdvancingClock) -> AsyncIterator[Broker]:
    broker = new_broker(tmp_path, clock)
    await broker.start()
    yield broker
    await broker.stop()


async def send(
    client: RemotingClient, broker: Broker, count: int = 1, *, queue: int = 0, tag: str = ""
) -> None:
    for number in range(count):
        properties = f"UNIQ_KEY\x01{queue}-{number}\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
        request = send_request(TOPIC, b"%d.%d" % (queue, number), queue=queue, properties=properties)
        assert (await client.invoke(broker.address, request)).code == 0


async def again(
    client: RemotingClient, broker: Broker, clock: AdvancingClock, seconds: float
) -> list[Popped]:
    """Let the time pass and pop the redelivered message."""
    held = asyncio.create_task(pop(client, broker, TOPIC, poll_ms=200_000))
    await asyncio.sleep(0)
    clock.advance(seconds)
    return await asyncio.wait_for(held, 60)


async def test_what_is_sent_is_popped_once(broker: Broker, client: RemotingClient) -> None:
    for queue in range(4):
        await send(client, broker, 3, queue=queue)
    first = await pop(client, broker, TOPIC, count=5)
    rest = await pop(client, broker, TOPIC)
    assert len(first) == 5
    assert sorted(message.body for message in first + rest) == [
        b"%d.%d" % (queue, number) for queue in range(4) for number in range(3)
    ]
    assert await pop(client, broker, TOPIC) == []


async def test_a_group_of_its_own_gets_everything_again(broker: Broker, client: RemotingClient) -> None:
    await send(client, broker, 2)
    assert len(await pop(client, broker, TOPIC)) == 2
    assert len(await pop(client, broker, TOPIC, "other")) == 2


async def test_an_acknowledged_message_does_not_come_again(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker, 2)
    taken = await pop(client, broker, TOPIC)
    assert await ack(client, broker, taken[0]) == 0
    (back,) = await again(client, broker, clock, 11)
    assert back.body == taken[1].body
    assert back.record.reconsume_times == 1
    assert back.record.topic == TOPIC
    assert back.topic == RETRY
    assert back.record.properties["1ST_POP_TIME"] == str(taken[0].handle.pop_time)
    assert await ack(client, broker, back) == 0


async def test_each_time_that_runs_out_counts_one_try(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker)
    await pop(client, broker, TOPIC)
    for times in range(1, 4):
        (back,) = await again(client, broker, clock, 11)
        assert back.record.reconsume_times == times


async def test_an_acknowledgement_that_comes_too_late_says_so(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker)
    (taken,) = await pop(client, broker, TOPIC)
    (back,) = await again(client, broker, clock, 11)
    reply = await client.invoke(broker.address, ack_request(taken))
    assert reply.code == 208
    assert "was redelivered" in str(reply.remark)
    assert await ack(client, broker, back) == 0


async def test_a_changed_invisible_time_counts_from_the_change(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker)
    (taken,) = await pop(client, broker, TOPIC)
    changed = await change(client, broker, taken, 60_000)
    assert changed.handle.invisible_ms == 60_000
    clock.advance(30)
    await asyncio.sleep(0.05)
    assert await pop(client, broker, TOPIC) == []
    (back,) = await again(client, broker, clock, 31)
    assert back.record.reconsume_times == 1
    assert back.record.properties["1ST_POP_TIME"] == str(changed.handle.pop_time)


async def test_a_message_put_off_with_suspend_counts_no_try(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker)
    (taken,) = await pop(client, broker, TOPIC)
    await change(client, broker, taken, 5_000, suspend=True)
    (back,) = await again(client, broker, clock, 6)
    assert back.record.reconsume_times == 0


async def test_acknowledgements_in_one_write_share_records(broker: Broker, client: RemotingClient) -> None:
    await send(client, broker, 32)
    taken = await pop(client, broker, TOPIC)
    wheel = ("rmq_sys_wheel_timer", 0)
    before = broker.store.max_offset(*wheel)
    codes = await asyncio.gather(*(ack(client, broker, message) for message in taken))
    assert set(codes) == {0}
    assert broker.store.max_offset(*wheel) - before < 32


async def test_a_batch_of_acknowledgements(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker, 10)
    taken = await pop(client, broker, TOPIC)
    handle = taken[0].handle
    bits = base64.b64encode((0b11_0111_1111).to_bytes(2, "little")).decode()
    body = {
        "brokerName": "broker-a",
        "acks": [
            {
                "c": "group", "t": TOPIC, "r": "0", "so": handle.start_offset, "q": 0, "rq": handle.revive_queue_id,
                "pt": handle.pop_time, "it": handle.invisible_ms, "b": bits,
            }
        ],
    }  # fmt: skip
    reply = await client.invoke(broker.address, RemotingCommand(200151, {}, orjson.dumps(body)))
    assert reply.code == 0
    assert [message.body for message in await again(client, broker, clock, 11)] == [taken[7].body]


async def test_a_pop_waits_for_a_message(broker: Broker, client: RemotingClient) -> None:
    await send(client, broker)
    await pop(client, broker, TOPIC)
    held = asyncio.create_task(pop(client, broker, TOPIC, poll_ms=20_000))
    info = RemotingCommand(200055, {"consumerGroup": "group", "topic": TOPIC, "queueId": "-1"})

    async def waits() -> str:
        reply = await client.invoke(broker.address, info)
        assert reply.ext is not None
        return reply.ext["pollingNum"]

    while await waits() == "0":
        pass
    await send(client, broker, queue=2)
    assert [message.body for message in await held] == [b"2.0"]
    assert await waits() == "0"


async def test_a_wait_ends_with_nothing_found(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker)
    await pop(client, broker, TOPIC)
    reply = await client.invoke(broker.address, pop_request(broker, TOPIC, poll_ms=50), timeout_s=60)
    assert reply.code == 210
    assert reply.ext is not None
    assert reply.ext["startOffsetInfo"] == reply.ext["msgOffsetInfo"] == ""


async def test_a_request_whose_time_is_up_is_not_served(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker, 2)
    # From now on the client's clock is known.
    assert len(await pop(client, broker, TOPIC, count=1, invisible_ms=60_000)) == 1
    late = pop_request(broker, TOPIC, poll_ms=1_000)
    clock.advance(10)
    assert (await client.invoke(broker.address, late)).code == 210
    assert len(await pop(client, broker, TOPIC)) == 1


async def test_a_client_whose_clock_is_minutes_off_gets_messages(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker, 4)
    for minutes in (-10, -10, 10, -10):
        request = pop_request(broker, TOPIC, count=1, poll_ms=1_000)
        assert request.ext is not None
        request.ext["bornTime"] = str(broker.clock.now_ms() + minutes * 60_000)
        before = clock.now_ms()
        reply = await client.invoke(broker.address, request, timeout_s=30)
        # A clock that was set back ten minutes after another ten looks late once: it asks again.
        if reply.code == 210:
            clock.advance(2)
            request.ext["bornTime"] = str(broker.clock.now_ms() + minutes * 60_000)
            reply = await client.invoke(broker.address, request, timeout_s=30)
        assert reply.code == 0, (minutes, reply.remark, clock.now_ms() - before)


async def held_call(
    client: RemotingClient, broker: Broker, request: RemotingCommand
) -> asyncio.Task[RemotingCommand]:
    """A call that the broker has read when this returns."""
    held = asyncio.create_task(client.invoke(broker.address, request, timeout_s=300))
    await asyncio.sleep(0)
    await client.invoke(broker.address, RemotingCommand(28))
    return held


@pytest.mark.parametrize("minutes", [-10, 10])
@pytest.mark.parametrize("code", [200_050, 200_054])
async def test_a_wait_is_as_long_as_asked_for_whatever_the_clients_clock_says(
    broker: Broker, client: RemotingClient, clock: AdvancingClock, minutes: int, code: int
) -> None:
    await send(client, broker)
    await pop(client, broker, TOPIC)
    request = pop_request(broker, TOPIC, poll_ms=20_000)
    request.code = code
    assert request.ext is not None
    request.ext["bornTime"] = str(broker.clock.now_ms() + minutes * 60_000)
    other = RemotingClient(clock=AdvancingClock(), network=AsyncioNetwork())
    held = await held_call(other, broker, request)
    clock.advance(10)
    await client.invoke(broker.address, RemotingCommand(28))
    assert not held.done()
    clock.advance(11)
    await held
    await other.close()


@pytest.mark.parametrize("born", ["", "0", None])
async def test_a_birth_time_that_is_missing_means_now(
    broker: Broker, client: RemotingClient, born: str | None
) -> None:
    await send(client, broker)
    for code, field in ((200_054, "hasMsg"), (200_050, "startOffsetInfo")):
        request = pop_request(broker, TOPIC, poll_ms=1_000)
        request.code = code
        assert request.ext is not None
        if born is None:
            del request.ext["bornTime"]
        else:
            request.ext["bornTime"] = born
        reply = await client.invoke(broker.address, request)
        assert (reply.code, bool(reply.ext and reply.ext[field] != "false")) == (0, True), reply


async def test_a_notification_waits_until_the_lock_of_another_attempt_is_free(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker, 2)
    await pop(client, broker, TOPIC, queue=0, count=1, order=True, attempt="one", invisible_ms=5_000)
    request = pop_request(broker, TOPIC, queue=0, order=True, attempt="two", poll_ms=30_000)
    request.code = 200_054
    held = await held_call(client, broker, request)
    await send(client, broker)  # it comes behind the lock: nothing to tell yet
    await client.invoke(broker.address, RemotingCommand(28))
    assert not held.done()
    clock.advance(6)
    reply = await held
    assert reply.ext is not None
    assert reply.ext["hasMsg"] == "true"


async def test_a_lock_that_runs_out_is_told_only_where_that_is_set(
    tmp_path: Path, client: RemotingClient, clock: AdvancingClock
) -> None:
    broker = new_broker(tmp_path, clock, enable_notify_after_pop_order_lock_release=False)
    await broker.start()
    try:
        await send(client, broker, 2)
        for number, told in enumerate((False, True)):
            changes = f"enableNotifyAfterPopOrderLockRelease={str(told).lower()}"
            assert (await client.invoke(broker.address, RemotingCommand(25, body=changes.encode()))).code == 0
            await pop(
                client,
                broker,
                TOPIC,
                queue=0,
                count=1,
                order=True,
                attempt=f"one{number}",
                invisible_ms=5_000,
            )
            request = pop_request(
                broker, TOPIC, queue=0, count=1, order=True, attempt="two", poll_ms=20_000, invisible_ms=0
            )
            held = await held_call(client, broker, request)
            clock.advance(6)
            if not told:
                await client.invoke(broker.address, RemotingCommand(28))
                await asyncio.sleep(0.01)
                assert not held.done()
                clock.advance(15)
            assert [message.body for message in popped(await held, TOPIC)] == [b"0.0"]
    finally:
        await broker.stop()


async def test_a_notification_tells_of_messages(broker: Broker, client: RemotingClient) -> None:
    await send(client, broker)
    ext = {
        "consumerGroup": "group", "topic": TOPIC, "queueId": "-1", "pollTime": "20000",
        "bornTime": str(broker.clock.now_ms()),
    }  # fmt: skip
    request = RemotingCommand(200054, ext)
    reply = await client.invoke(broker.address, request)
    assert reply.ext is not None
    assert reply.ext["hasMsg"] == "true"
    await pop(client, broker, TOPIC)
    held = asyncio.create_task(client.invoke(broker.address, request, timeout_s=60))
    await asyncio.sleep(0)
    await send(client, broker, queue=1)
    reply = await held
    assert reply.ext is not None
    assert reply.ext["hasMsg"] == "true"


async def test_tags_are_filtered(broker: Broker, client: RemotingClient) -> None:
    await send(client, broker, 2, tag="a")
    await send(client, broker, 2, queue=1, tag="b")
    assert [message.body for message in await pop(client, broker, TOPIC, exp="b || c")] == [b"1.0", b"1.1"]
    assert await pop(client, broker, TOPIC, exp="*") == []


async def test_requests_that_cannot_be_served_say_why(broker: Broker, client: RemotingClient) -> None:
    await send(client, broker)
    for change_of, code in (
        ({"topic": "Nowhere"}, 17),
        ({"queueId": "77"}, 29),
        ({"maxMsgNums": "33"}, 1),
        ({"maxMsgNums": "0"}, 1),
        ({"invisibleTime": "-1"}, 29),
        ({"consumerGroup": "bad group!"}, 26),
        ({"queueId": "x"}, 1),
    ):
        request = pop_request(broker, TOPIC)
        assert request.ext is not None
        request.ext.update(change_of)
        reply = await client.invoke(broker.address, request)
        assert (reply.code, bool(reply.remark)) == (code, True), (change_of, reply)
    (taken,) = await pop(client, broker, TOPIC)
    for change_of, code in (
        ({"extraInfo": "nonsense"}, 1),
        ({"topic": "Nowhere"}, 17),
        ({"queueId": "55"}, 13),
        ({"offset": "1000"}, 208),
        ({"extraInfo": str(taken.handle).replace(" 0 0 broker", " 70 0 broker")}, 13),
    ):
        request = ack_request(taken)
        assert request.ext is not None
        request.ext.update(change_of)
        reply = await client.invoke(broker.address, request)
        assert (reply.code, bool(reply.remark)) == (code, True), (change_of, reply)


# --- in order


async def test_an_ordered_queue_gives_nothing_while_a_block_is_out(
    broker: Broker, client: RemotingClient
) -> None:
    await send(client, broker, 4)
    first = await pop(client, broker, TOPIC, queue=0, count=2, order=True)
    assert [message.body for message in first] == [b"0.0", b"0.1"]
    assert first[0].handle.is_ordered
    assert await pop(client, broker, TOPIC, queue=0, count=2, order=True) == []
    held = asyncio.create_task(pop(client, broker, TOPIC, queue=0, count=2, order=True, poll_ms=20_000))
    for message in first:
        assert await ack(client, broker, message) == 0
    assert [message.body for message in await held] == [b"0.2", b"0.3"]


async def test_an_ordered_block_comes_again_in_place_and_counts(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker, 3)
    first = await pop(client, broker, TOPIC, queue=0, count=2, order=True)
    await ack(client, broker, first[0])
    held = asyncio.create_task(
        client.invoke(
            broker.address, pop_request(broker, TOPIC, queue=0, order=True, poll_ms=200_000), timeout_s=60
        )
    )
    await asyncio.sleep(0)
    clock.advance(11)
    reply = await held
    assert [message.body for message in popped(reply, TOPIC)] == [b"0.1", b"0.2"]
    assert reply.ext is not None
    assert reply.ext["orderCountInfo"] == "0 qo0%1 1;0 0 0"


async def test_the_same_attempt_gets_the_same_block(broker: Broker, client: RemotingClient) -> None:
    await send(client, broker, 4)
    first = await pop(client, broker, TOPIC, queue=0, count=2, order=True, attempt="a1")
    repeated = await pop(client, broker, TOPIC, queue=0, count=2, order=True, attempt="a1")
    assert [message.body for message in repeated] == [message.body for message in first]


# --- over a restart


@pytest.mark.parametrize("crash", [False, True])
async def test_what_is_invisible_stays_so_over_a_restart(
    tmp_path: Path, client: RemotingClient, clock: AdvancingClock, crash: bool
) -> None:
    first = new_broker(tmp_path, clock)
    await first.start()
    await send(client, first, 3)
    taken = await pop(client, first, TOPIC)
    await ack(client, first, taken[1])
    await (first.kill() if crash else first.stop())
    second = new_broker(tmp_path, clock)
    await second.start()
    try:
        assert await pop(client, second, TOPIC) == []
        assert await ack(client, second, taken[2]) == 0
        assert [message.body for message in await again(client, second, clock, 11)] == [taken[0].body]
    finally:
        await second.stop()


async def test_what_is_out_can_be_listed(broker: Broker, client: RemotingClient) -> None:
    await send(client, broker, 3)
    taken = await pop(client, broker, TOPIC)
    await ack(client, broker, taken[0])
    reply = await client.invoke(broker.address, RemotingCommand(910054, {"consumerGroup": "group"}))
    found = orjson.loads(reply.body)
    assert found["total"] == 2
    assert [entry["offset"] for entry in found["entries"]] == [1, 2]
    assert found["entries"][0]["visibleAt"] == taken[0].handle.revive_time
    assert found["entries"][0]["consumer"].startswith("127.0.0.1:")


async def test_a_pending_pop_is_withdrawn_by_its_connection_alone(
    broker: Broker, client: RemotingClient
) -> None:
    names = {"consumerGroup": "group", "topic": TOPIC}
    request = pop_request(broker, TOPIC, poll_ms=15_000)
    assert request.ext is not None
    request.ext["aerobeePopId"] = "7"
    await send(client, broker)
    await pop(client, broker, TOPIC)
    waiting = asyncio.create_task(client.invoke(broker.address, request, timeout_s=60))
    pops = broker.services.pops._waiting
    await wait_until(lambda: pops.count == 1)
    withdraw = RequestCode.AEROBEE_WITHDRAW_POP
    other = RemotingClient(clock=AdvancingClock(), network=AsyncioNetwork())
    for peer, pop_id in ((other, "7"), (client, "8")):
        reply = await peer.invoke(
            broker.address, RemotingCommand(withdraw, {**names, "aerobeePopId": pop_id})
        )
        assert (reply.code, pops.count) == (0, 1)
    await other.close()
    for _ in range(2):
        reply = await client.invoke(broker.address, RemotingCommand(withdraw, {**names, "aerobeePopId": "7"}))
        assert (reply.code, pops.count) == (0, 0)
    reply = await waiting
    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "withdrawn")
    await send(client, broker, 1)
    assert len(await pop(client, broker, TOPIC)) == 1


async def test_nothing_of_what_is_acknowledged_goes_through_the_revive_topic(
    broker: Broker, client: RemotingClient, clock: AdvancingClock
) -> None:
    await send(client, broker, 8)
    for message in await pop(client, broker, TOPIC):
        await ack(client, broker, message)
    clock.advance(15)
    timer = ("rmq_sys_wheel_timer", 0)
    await wait_until(lambda: broker.store.max_offset(*timer) > 1, "the check point is there")
    await asyncio.sleep(0.05)
    revive = "rmq_sys_REVIVE_LOG_DefaultCluster"
    assert [broker.store.max_offset(revive, queue) for queue in range(8)] == [0] * 8


async def test_the_merge_buffer_writes_nothing_that_is_acknowledged_soon(
    tmp_path: Path, client: RemotingClient, clock: AdvancingClock
) -> None:
    broker = new_broker(tmp_path, clock, enable_pop_buffer_merge=True)
    await broker.start()
    try:
        await send(client, broker, 6)
        taken = await pop(client, broker, TOPIC, count=3, invisible_ms=30_000)
        left = await pop(client, broker, TOPIC, count=3, invisible_ms=30_000)
        for message in taken:
            assert await ack(client, broker, message) == 0
        assert broker.store.max_offset("rmq_sys_wheel_timer", 0) == 0
        clock.advance(1)
        await wait_until(lambda: broker.offsets.query("group", TOPIC, 0) == 3, "the offset follows")
        clock.advance(10)
        await wait_until(
            lambda: broker.store.max_offset("rmq_sys_wheel_timer", 0) == 1, "the other pop is written"
        )
        await wait_until(lambda: broker.offsets.query("group", TOPIC, 0) == 6, "the offset follows")
        assert [message.body for message in await again(client, broker, clock, 20)] == [
            message.body for message in left
        ]
    finally:
        await broker.stop()
