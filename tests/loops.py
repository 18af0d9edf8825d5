"""Every event loop that a server runs on: asyncio's own, uvloop's, and the one that waits in native code.

A module whose tests are to run on each of them imports `event_loop_policy`, which pytest-asyncio looks for:

    from tests.loops import event_loop_policy  # noqa: F401

Their transports are of different classes and tell of ends at different times: what a server does with a transport is tried on each.
"""

from __future__ import annotations

import asyncio

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.remoting.native_loop import NativeEventLoop

LOOPS = ("asyncio", "uvloop", "native")


class _Policy(asyncio.DefaultEventLoopPolicy):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        if self._name == "uvloop":
            import uvloop

            return uvloop.new_event_loop()
        make_sockets = choose_backend().make_sockets if self._name == "native" else None
        return super().new_event_loop() if make_sockets is None else NativeEventLoop(make_sockets())


@pytest.fixture(params=LOOPS)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """The policy of a test's loop; skips what is not there."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    if request.param == "native" and choose_backend().make_sockets is None:
        pytest.skip("only the native backend on Linux has sockets")
    return _Policy(request.param)
