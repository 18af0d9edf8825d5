"""The wall clock is set, by hours, while things wait: nothing is lost, early for good, or late by the jump."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee.clock import WALL_LOOK_S, ManualClock, wall_wait_s
from aerobee.nameserver import NameServer
from aerobee.nameserver.config import NameServerConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from tests.abuse.untrusted_peer import UntrustedPeer
from tests.integration.broker_calls import send_request
from tests.integration.set_clock import SetClock, started
from tests.waiting import wait_until

HOUR_S = 3_600


def test_a_wait_for_the_wall_clock_looks_again() -> None:
    clock = ManualClock()
    assert wall_wait_s(clock, clock.now_ms() + 1_500) == 1.5
    assert wall_wait_s(clock, clock.now_ms() - HOUR_S * 1000) == 0
    assert wall_wait_s(clock, clock.now_ms() + HOUR_S * 1000) == WALL_LOOK_S


async def delayed_at(clock: SetClock, path: Path, properties: str, jump_s: float, pass_s: float) -> None:
    """Send with `properties`, set the clock, let time pass; returns when the message was delivered, once."""
    broker = started(path, clock)
    await broker.start()
    try:
        async with UntrustedPeer(broker.address) as peer:
            assert (await peer.send_message("later", b"x", properties=properties)).code == 0
            clock.set_by_s += jump_s
            clock.advance(pass_s)

            def delivered() -> int:
                return sum(broker.store.max_offset("later", queue_id) for queue_id in range(4))

            await wait_until(lambda: delivered() > 0, "the message is delivered")
            for _ in range(10):
                await asyncio.sleep(0.01)
            assert delivered() == 1
    finally:
        await broker.stop()


@pytest.mark.parametrize("kind", ["level", "timer"])
async def test_what_is_due_comes_soon_after_the_clock_was_set_ahead(tmp_path: Path, kind: str) -> None:
    clock = SetClock()
    in_an_hour = clock.now_ms() + HOUR_S * 1000
    properties = "DELAY\x0117\x02" if kind == "level" else f"TIMER_DELIVER_MS\x01{in_an_hour}\x02"
    await delayed_at(clock, tmp_path, properties, 3 * HOUR_S, WALL_LOOK_S + 5)


@pytest.mark.parametrize("kind", ["level", "timer"])
async def test_nothing_is_early_or_lost_after_the_clock_was_set_back(tmp_path: Path, kind: str) -> None:
    clock = SetClock()
    soon = clock.now_ms() + 60_000
    properties = "DELAY\x015\x02" if kind == "level" else f"TIMER_DELIVER_MS\x01{soon}\x02"
    broker = started(tmp_path, clock)
    await broker.start()
    try:
        async with UntrustedPeer(broker.address) as peer:
            assert (await peer.send_message("later", b"x", properties=properties)).code == 0
            clock.set_by_s -= 3 * HOUR_S

            def delivered() -> int:
                return sum(broker.store.max_offset("later", queue_id) for queue_id in range(4))

            if kind == "timer":
                # Its moment is one of the wall clock: it comes when the clock shows it, not before.
                clock.advance(65)
                for _ in range(30):
                    await asyncio.sleep(0.01)
                assert delivered() == 0
                for _ in range(13):
                    clock.advance(900)
                    await asyncio.sleep(0.02)
            else:
                # A level's delay is time that passes: what would wait hours longer than its level is handed out.
                clock.advance(65)
            await wait_until(lambda: delivered() == 1, "the message is delivered")
    finally:
        await broker.stop()


@pytest.mark.parametrize("jump_s", [5 * HOUR_S, -5 * HOUR_S])
async def test_registrations_live_by_the_steady_clock(jump_s: float) -> None:
    clock = SetClock()
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", scan_not_active_broker_interval=1_000)
    server = NameServer(config, clock=clock)
    await server.start()
    try:
        async with UntrustedPeer(server.address) as peer:
            ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:10911", "brokerId": "0",
                   "haServerAddr": "127.0.0.1:10912"}  # fmt: skip
            assert (await peer.call(103, ext)).code == 0
            clock.set_by_s += jump_s
            clock.advance(5)
            await asyncio.sleep(0.05)
            assert ("c", "127.0.0.1:10911") in server.table.live, "it is not gone because the clock was set"
            clock.advance(130)
            await wait_until(lambda: not server.table.live, "a silent broker is forgotten in its time")
    finally:
        await server.stop()


async def test_a_popped_message_comes_again_after_the_clock_was_set_ahead(tmp_path: Path) -> None:
    clock = SetClock()
    broker = started(tmp_path, clock)
    await broker.start()
    try:
        async with UntrustedPeer(broker.address) as peer:
            assert (await peer.send_message("jobs", b"job")).code == 0
            group = b'{"groupName":"workers","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16,"brokerId":0}'
            assert (await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)).code == 0

            async def pop() -> RemotingCommand:
                return await peer.call(200_050, {
                    "consumerGroup": "workers", "topic": "jobs", "queueId": "-1", "maxMsgNums": "32",
                    "invisibleTime": str(2 * HOUR_S * 1000), "pollTime": "0", "bornTime": str(clock.now_ms()),
                    "initMode": "0", "exp": "*", "expType": "TAG"})  # fmt: skip

            assert (await pop()).code == 0
            assert (await pop()).code != 0, "it is invisible"
            clock.set_by_s += 3 * HOUR_S
            for _ in range(6):
                clock.advance(WALL_LOOK_S)
                await asyncio.sleep(0.05)

            async def comes_again() -> bool:
                return (await pop()).code == 0

            await wait_until(comes_again, "the message is handed out again")
    finally:
        await broker.stop()


async def test_sends_continue_and_store_times_never_go_back(tmp_path: Path) -> None:
    clock = SetClock()
    broker = started(tmp_path, clock)
    await broker.start()
    try:
        async with UntrustedPeer(broker.address) as peer:
            for jump_s in (0.0, -5 * HOUR_S, 9 * HOUR_S, -1 * HOUR_S):
                clock.set_by_s += jump_s
                request = send_request("steady")
                assert (await peer.call(request.code, request.ext, request.body)).code == 0
        times = [broker.store.store_time("steady", 0, offset) for offset in range(4)]
        assert times == sorted(times)
    finally:
        await broker.stop()
