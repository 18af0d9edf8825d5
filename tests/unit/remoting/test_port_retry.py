"""A port that another process has is bound as soon as that process releases it."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest

from aerobee.clock import ManualClock
from aerobee.remoting.port_retry import FIRST_PAUSE_S, PAUSE_MAX_S, PortRetry

TAKEN = OSError(errno.EADDRINUSE, "Address already in use")
PASSES = 10  # of the event loop: an attempt takes two


class Port:
    """A port with other users. `attempts`: the times of the attempts to bind it."""

    def __init__(self, clock: ManualClock) -> None:
        self.is_taken = True
        self.error: Exception = TAKEN
        self.attempts: list[float] = []
        self.entered, self.released = asyncio.Event(), asyncio.Event()
        self.released.set()
        self._clock = clock
        self.retry = PortRetry(clock, self.open, port=10_912, purpose="where slaves connect", advice="advice")

    async def open(self) -> None:
        self.attempts.append(self._clock.monotonic())
        self.entered.set()
        await self.released.wait()
        if self.is_taken:
            raise self.error

    async def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self._clock.advance(1)
            for _ in range(PASSES):
                await asyncio.sleep(0)


async def test_attempts_are_repeated_with_longer_pauses_up_to_a_bound() -> None:
    port = Port(ManualClock())
    port.retry.start(TAKEN)
    await port.advance(130)
    pauses = [second - first for first, second in zip([0.0, *port.attempts], port.attempts, strict=False)]
    assert pauses == [FIRST_PAUSE_S, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]
    await port.retry.stop()


async def test_success_ends_the_attempts_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port = Port(ManualClock())
    port.retry.start(TAKEN)
    await port.advance(3)
    assert port.retry.missing == "10912, where slaves connect: Address already in use"
    port.is_taken = False
    await port.advance(100)
    assert port.attempts == [1, 3, 7]
    assert port.retry.missing == ""
    assert [record.getMessage() for record in caplog.records] == [
        "port 10912, where slaves connect, cannot be bound: Address already in use; trying again (advice)",
        "port 10912, where slaves connect, is bound now",
    ]


async def test_a_new_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    port = Port(ManualClock())
    port.retry.start(TAKEN)
    port.error = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    await port.advance(60)
    assert [record.getMessage().split(": ")[1].split("; ")[0] for record in caplog.records] == [
        "Address already in use",
        "Cannot assign requested address",
    ]
    await port.retry.stop()


async def test_no_attempt_runs_after_stop() -> None:
    port = Port(ManualClock())
    port.retry.start(TAKEN)
    port.released.clear()
    await port.advance(1)
    assert port.entered.is_set()
    stopping = asyncio.create_task(port.retry.stop())
    await port.advance(1)
    assert not stopping.done(), "the attempt may have bound the port: its owner closes it afterwards"
    port.released.set()
    await stopping
    await port.advance(100)
    assert port.attempts == [1]
    assert port.retry.missing == ""


async def test_a_bug_in_an_attempt_ends_the_attempts_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    port = Port(ManualClock())
    port.retry.start(TAKEN)
    port.error = ValueError("of the test")
    await port.advance(60)
    assert port.attempts == [1]
    assert caplog.records[-1].exc_info is not None
    await port.retry.stop()
