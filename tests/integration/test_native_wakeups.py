"""The event loop that waits in native code loses no wake-up: whatever is ready ends a wait, and no wait begins with work left.

A request that takes seconds on a busy machine looks like a lost wake-up. These tests tell both apart without a clock: each wait
that ended by its time alone is followed by a look at every descriptor. One that is ready then, and that the next look of the
native code does not report either, was lost.
"""

from __future__ import annotations

import asyncio
import random
import select
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.errors import TransportError
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.direct import DirectNetwork
from aerobee.remoting.native_loop import NativeEventLoop
from tests.integration import test_remoting
from tests.integration.remoting_calls import BIG, CALL_BACK, ECHO, WAIT, client, serving
from tests.integration.remoting_calls import request as request_frame

MAKE_SOCKETS = choose_backend().make_sockets
CALLS, ROUNDS = 60, 4
PATIENT_S = 120.0

pytestmark = pytest.mark.skipif(MAKE_SOCKETS is None, reason="only the native backend on Linux has sockets")


class WatchedSockets:
    """Native sockets that check each wait."""

    def __init__(self, sockets: Any) -> None:
        self._sockets = sockets
        self._descriptors: dict[int, int] = {}  # of connections, by token
        self._masks: dict[int, int] = {}  # poll events, by descriptor
        self._leaves_out = False
        self.timed_out_count = 0
        self.lost: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sockets, name)

    def leave_out(self, leaves_out: bool) -> None:
        """Whether descriptors of asyncio that are registered from now on are not watched: their wake-ups are lost."""
        self._leaves_out = leaves_out

    def add(self, descriptor: int, owner: object) -> int:
        token: int = self._sockets.add(descriptor, owner)
        self._descriptors[token] = descriptor
        self._masks[descriptor] = select.POLLIN
        return token

    def remove(self, token: int) -> None:
        self._masks.pop(self._descriptors.pop(token), None)
        self._sockets.remove(token)

    def watch(self, token: int, reads: bool, writes: bool) -> None:
        self._masks[self._descriptors[token]] = select.POLLIN * reads | select.POLLOUT * writes
        self._sockets.watch(token, reads, writes)

    def watch_other(self, descriptor: int, mask: int) -> None:
        self._masks[descriptor] = select.POLLIN * bool(mask & 1) | select.POLLOUT * bool(mask & 2)
        if not (mask and self._leaves_out):
            self._sockets.watch_other(descriptor, mask)

    def wait(self, timeout_s: float) -> Any:
        found = self._sockets.wait(timeout_s)
        if timeout_s and not any(found):
            self._look()
        return found

    def run(self, backend: Any, timeout_s: float, **options: Any) -> Any:
        if timeout_s and options["loop_ready"]:
            self.lost.append(
                f"a wait of {timeout_s} s began with {len(options['loop_ready'])} callbacks to run"
            )
        if timeout_s < 0 and options["loop_timers"]:
            self.lost.append("a wait without end began with timers")
        turns = self._sockets.run(backend, timeout_s, **options)
        if timeout_s and not turns.turn_count and not turns.others:
            self._look()
        return turns

    def _look(self) -> None:
        """A wait has found nothing: what is ready now has to be found by the next one, which does not wait."""
        self.timed_out_count += 1
        poll = select.poll()
        for descriptor, events in self._masks.items():
            if events:
                poll.register(descriptor, events)
        ready = poll.poll(0)
        if ready and not any(self._sockets.wait(0.0)):
            self.lost.append(f"(descriptor, events) ready and not found: {ready}")


def run(sockets: WatchedSockets, case: Any) -> None:
    assert MAKE_SOCKETS is not None
    make_sockets = MAKE_SOCKETS
    test_remoting.NETWORKS.append(lambda: DirectNetwork(make_sockets))
    try:
        with asyncio.Runner(loop_factory=lambda: NativeEventLoop(sockets)) as runner:  # type: ignore[arg-type]
            runner.run(case)
    finally:
        test_remoting.NETWORKS.pop()


def watched() -> WatchedSockets:
    assert MAKE_SOCKETS is not None
    return WatchedSockets(MAKE_SOCKETS())


@pytest.mark.parametrize("seed", range(6))
def test_no_wait_begins_with_work_or_ends_with_bytes_unread(seed: int) -> None:
    rng = random.Random(seed)

    def called(connection: Any, request: RemotingCommand) -> RemotingCommand:
        return request.reply(ext={"seen": request.text("n")}, body=b"")

    async def case() -> None:
        async with serving() as harness, client(handlers={40: called}) as caller:

            async def call(code: int) -> None:
                await asyncio.sleep(rng.choice((0, 0, 0.001, 0.02)))
                reply = await caller.invoke(harness.address, RemotingCommand(code), timeout_s=PATIENT_S)
                assert reply.code == 0

            for _ in range(ROUNDS):
                harness.release.clear()
                codes = rng.choices((ECHO, WAIT, CALL_BACK, BIG), weights=(8, 2, 2, 1), k=CALLS)
                calls = [asyncio.create_task(call(code)) for code in codes]
                async with test_remoting.raw_peer(harness.address) as peer:
                    frames = b"".join(request_frame(ECHO, opaque) for opaque in range(5))
                    cut = rng.randrange(1, len(frames))
                    peer.writer.write(frames[:cut])
                    await asyncio.sleep(0.005)
                    peer.writer.write(frames[cut:])
                    assert [(await peer.frame()).opaque for _ in range(5)] == list(range(5))
                harness.release.set()
                await asyncio.gather(*calls)
                await asyncio.sleep(0.01)  # nothing is left to do: this wait ends by its time

    sockets = watched()
    run(sockets, case())
    assert sockets.lost == []
    assert sockets.timed_out_count >= 1


def test_a_lost_wakeup_is_found() -> None:
    """A descriptor that native code does not watch, though the event loop does: the reply is there and is not read."""

    async def case() -> None:
        async with serving() as harness, client() as caller:
            sockets.leave_out(True)  # what asyncio registers from here on, the client's socket
            with pytest.raises(TransportError):
                await caller.invoke(harness.address, RemotingCommand(ECHO), timeout_s=0.3)
            sockets.leave_out(False)

    sockets = watched()
    run(sockets, case())
    assert sockets.lost
