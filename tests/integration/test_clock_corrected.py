"""The wall clock was far ahead for a while and is corrected: what is sent afterwards comes in its time, what was sent before is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from tests.abuse.untrusted_peer import UntrustedPeer
from tests.integration.set_clock import SetClock, started
from tests.waiting import wait_until

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
AHEAD_S = [90, HOUR_S, 30 * DAY_S, 24 * 365 * DAY_S]
GROUP = b'{"groupName":"workers","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16,"brokerId":0}'


async def send(peer: UntrustedPeer, properties: str, topic: str = "later", body: bytes = b"x") -> None:
    assert (await peer.send_message(topic, body, properties=properties)).code == 0


async def pop(peer: UntrustedPeer, clock: SetClock, invisible_s: int) -> RemotingCommand:
    return await peer.call(200_050, {
        "consumerGroup": "workers", "topic": "jobs", "queueId": "-1", "maxMsgNums": "32",
        "invisibleTime": str(invisible_s * 1000), "pollTime": "0", "bornTime": str(clock.now_ms()),
        "initMode": "0", "exp": "*", "expType": "TAG"})  # fmt: skip


async def passes(clock: SetClock, seconds: float) -> None:
    """Time goes by in steps, as it does."""
    while seconds > 0:
        clock.advance(min(seconds, 1.0))
        seconds -= 1.0
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("ahead_s", AHEAD_S)
async def test_timers_come_in_time_after_a_correction(tmp_path: Path, ahead_s: int) -> None:
    clock = SetClock()
    clock.set_by_s = ahead_s
    broker = started(tmp_path, clock)
    await broker.start()

    def delivered(topic: str) -> int:
        return sum(broker.store.max_offset(topic, queue_id) for queue_id in range(4))

    try:
        async with UntrustedPeer(broker.address) as peer:
            await send(peer, "TIMER_DELAY_SEC\x015\x02", "ahead")
            await passes(clock, 2)
            clock.set_by_s = 0
            await passes(clock, 1)
            await send(peer, "TIMER_DELAY_SEC\x015\x02", "later")
            await send(peer, f"TIMER_DELIVER_MS\x01{clock.now_ms() + 3 * DAY_S * 1000}\x02", "days")
            await passes(clock, 3)
            assert delivered("later") == 0
            await passes(clock, 13)
            await wait_until(lambda: delivered("later") == 1, "the message that was sent afterwards came")
            await wait_until(
                lambda: delivered("ahead") == 1,
                "the one that was sent before waited no longer than its delay",
            )
            assert delivered("days") == 0
    finally:
        await broker.stop()
    # And after a restart.
    broker = started(tmp_path, clock)
    await broker.start()
    try:
        async with UntrustedPeer(broker.address) as peer:
            await send(peer, "TIMER_DELAY_SEC\x015\x02", "later")
            await passes(clock, 16)
            await wait_until(lambda: delivered("later") == 2, "it came after the restart")
            assert (delivered("ahead"), delivered("days")) == (1, 0)
            for _ in range(30):
                clock.advance(HOUR_S * 3)
                await asyncio.sleep(0.01)
            await wait_until(lambda: delivered("days") == 1, "and what is due in days")
            assert (delivered("ahead"), delivered("later")) == (1, 2)
    finally:
        await broker.stop()


@pytest.mark.parametrize("ahead_s", AHEAD_S)
async def test_popped_messages_return_after_a_correction(tmp_path: Path, ahead_s: int) -> None:
    clock = SetClock()
    clock.set_by_s = ahead_s
    broker = started(tmp_path, clock)
    await broker.start()
    try:
        async with UntrustedPeer(broker.address) as peer:
            assert (await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP)).code == 0
            await send(peer, "", "jobs", b"before")
            assert (await pop(peer, clock, 10)).code == 0
            await passes(clock, 2)
            clock.set_by_s = 0
            await passes(clock, 1)
            await send(peer, "", "jobs", b"after")
            reply = await pop(peer, clock, 10)
            assert (reply.code, b"after" in reply.body) == (0, True)
            assert (await pop(peer, clock, 10)).code != 0
            seen = b""
            for _ in range(6):
                await passes(clock, 6)
                seen += (await pop(peer, clock, 3_600)).body
            assert b"after" in seen
            assert b"before" in seen
    finally:
        await broker.stop()


async def pop_in_order(peer: UntrustedPeer, clock: SetClock, invisible_s: int) -> RemotingCommand:
    return await peer.call(200_050, {
        "consumerGroup": "workers", "topic": "jobs", "queueId": "0", "maxMsgNums": "1",
        "invisibleTime": str(invisible_s * 1000), "pollTime": "0", "bornTime": str(clock.now_ms()),
        "initMode": "0", "exp": "*", "expType": "TAG", "order": "true"})  # fmt: skip


async def test_an_ordered_block_ends_after_a_correction(tmp_path: Path) -> None:
    clock = SetClock()
    clock.set_by_s = AHEAD_S[-1]
    broker = started(tmp_path, clock)
    await broker.start()
    try:
        async with UntrustedPeer(broker.address) as peer:
            assert (await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP)).code == 0
            for _ in range(4):
                await send(peer, "", "jobs", b"job")
            assert (await pop_in_order(peer, clock, 10)).code == 0
            clock.set_by_s = 0
            assert (await pop_in_order(peer, clock, 10)).code != 0, (
                "it is held for as long as it was requested"
            )
            await passes(clock, 12)
            assert (await pop_in_order(peer, clock, 10)).code == 0
    finally:
        await broker.stop()


async def test_levels_are_not_early_after_a_correction(tmp_path: Path) -> None:
    clock = SetClock()
    clock.set_by_s = HOUR_S
    broker = started(tmp_path, clock)
    await broker.start()

    def delivered(topic: str) -> int:
        return sum(broker.store.max_offset(topic, queue_id) for queue_id in range(4))

    try:
        async with UntrustedPeer(broker.address) as peer:
            await send(peer, "", "plain")
            clock.set_by_s = 0
            await passes(clock, 1)
            for _ in range(3):
                await send(peer, "DELAY\x013\x02")  # 10 s
            await passes(clock, 5)
            assert delivered("later") == 0
            await send(peer, "DELAY\x013\x02")
            await passes(clock, 6)
            await wait_until(lambda: delivered("later") == 3, "the delay of the first ones expired")
            await passes(clock, 5)
            await wait_until(lambda: delivered("later") == 4, "and that of the last one")
    finally:
        await broker.stop()


@pytest.mark.parametrize("ahead_s", [HOUR_S, AHEAD_S[-1]])
async def test_transactions_are_checked_after_a_correction(tmp_path: Path, ahead_s: int) -> None:
    clock = SetClock()
    clock.set_by_s = ahead_s
    broker = started(tmp_path, clock)
    await broker.start()
    try:
        async with UntrustedPeer(broker.address) as peer:
            await send(peer, "", "plain")
            for number in range(2):
                properties = f"TRAN_MSG\x01true\x02PGROUP\x01payers\x02UNIQ_KEY\x01A{number}\x02"
                assert (await peer.send_message("money", b"x", properties=properties, f="4")).code == 0
                clock.set_by_s = 0
                await passes(clock, 1)
            checker = next(each for each in broker.features if each.name == "transactions").checker
            assert checker.unsent_count == 0
            await passes(clock, 25)
            await wait_until(lambda: checker.unsent_count >= 2, "both are to be asked about")
    finally:
        await broker.stop()
