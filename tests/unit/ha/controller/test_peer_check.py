"""Frames of Raft come from the hosts of controllerDLegerPeers."""

from __future__ import annotations

import asyncio

from aerobee.clock import ManualClock
from aerobee.ha.controller.peer_check import PAUSE_S, PeerCheck
from aerobee.peer_hosts import PeerHosts


def test_a_frame_comes_from_the_host_of_its_source() -> None:
    async def run() -> None:
        check = PeerCheck({"n0": "10.0.0.1:9878", "n1": "[fd00::2]:9878"}, ManualClock())
        assert check.refusal("n0", "10.0.0.1") == ""
        assert check.refusal("n1", "fd00::2") == ""
        assert "10.0.0.2 is not 10.0.0.1" in check.refusal("n0", "10.0.0.2")
        assert "10.0.0.1 is not fd00::2" in check.refusal("n1", "10.0.0.1")
        assert "'n7' is not in controllerDLegerPeers" in check.refusal("n7", "10.0.0.1")
        await check.stop()

    asyncio.run(run())


async def test_a_name_is_looked_up_again_when_a_frame_comes_from_elsewhere() -> None:
    addresses = {"a.example": "10.0.0.1"}
    looked: list[str] = []

    async def look_up(host: str) -> list[str]:
        looked.append(host)
        return [addresses[host]]

    clock = ManualClock()
    check = PeerCheck({"n0": "a.example:9878"}, clock, PeerHosts(look_up))

    async def refused(address: str) -> bool:
        is_refused = check.refusal("n0", address) != ""
        if check._looking is not None:
            await check._looking
        return is_refused

    assert await refused("10.0.0.1"), "not looked up yet"
    assert not await refused("10.0.0.1")
    addresses["a.example"] = "10.0.0.9"
    for _ in range(10):
        assert await refused("10.0.0.9")
    assert len(looked) == 1, "frames of untrusted peers cause no look-ups"
    clock.advance(PAUSE_S)
    assert await refused("10.0.0.9")
    assert not await refused("10.0.0.9")
    assert await refused("10.0.0.1")
    await check.stop()
