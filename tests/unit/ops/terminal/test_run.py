"""Signals while a command runs."""

import asyncio
import os
import signal

import pytest

from aerobee.ops.terminal.run import Interrupted, Stop, run


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_result_is_returned() -> None:
    async def command(stop: Stop) -> int:
        return 7

    assert run(command) == 7


def test_first_signal_cancels_a_command_that_does_not_look_at_it() -> None:
    async def command(stop: Stop) -> None:
        interrupt()
        await asyncio.Event().wait()

    with pytest.raises(Interrupted):
        run(command)


def test_first_signal_lets_a_command_end_in_order() -> None:
    async def command(stop: Stop) -> str:
        interrupt()
        await stop.wait()
        return "drained"

    assert run(command) == "drained"


def test_second_signal_forces() -> None:
    forced: list[str] = []

    async def command(stop: Stop) -> None:
        stop.on_force = lambda: forced.append("forced")
        interrupt()
        await stop.wait()
        interrupt()
        await asyncio.Event().wait()

    with pytest.raises(Interrupted):
        run(command)
    assert forced == ["forced"]


def test_work_is_cancelled_and_awaited_when_the_user_asks_to_stop() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            interrupt()
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    async def command(stop: Stop) -> object:
        return await stop.or_done(work())

    assert run(command) is None
    assert ended == ["cleaned up"]


def test_failure_of_the_work_passes_through() -> None:
    async def work() -> None:
        raise ValueError("broken")

    async def command(stop: Stop) -> object:
        return await stop.or_done(work())

    with pytest.raises(ValueError, match="broken"):
        run(command)
