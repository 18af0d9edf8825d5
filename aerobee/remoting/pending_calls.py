"""The calls of one connection that wait for their responses. Follows the responseTable of NettyRemotingAbstract.

Calls need no timers for their deadlines: each connection sweeps its table every CALL_SWEEP_S while calls are
pending. The next sweep drops a call that its caller has cancelled. Code that removes an entry from `table`
must complete its future.

A peer that sent nothing at all while a call waited until its time-out is unresponsive: the network path may be broken without the
operating system noticing for minutes. The owner of the connection is notified and may replace it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aerobee.errors import RequestTimeout, TransportError

CALL_SWEEP_S = 0.1  # maximum delay of a time-out
UNRESPONSIVE_S = 1.0  # a shorter time-out does not prove that the peer is unresponsive
NEVER = float("inf")

# (future, started, deadline, request, note), by the loop's time. A tuple, for one is made with each message that is sent.
# `note` is the burst hook's; the future's result is the response, or what that hook made of it.
Call = tuple["asyncio.Future[Any]", float, float, str, Any]


class PendingCalls:
    """`table` holds the calls by opaque; it stays the same dict. `sweep_at` is the time of the next sweep.

    `peer` names the other side in errors. Set `heard` whenever bytes of the peer arrive.
    """

    __slots__ = (
        "_after_sweep",
        "_heard_at",
        "_loop",
        "_on_unresponsive",
        "_timer",
        "heard",
        "peer",
        "sweep_at",
        "table",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        after_sweep: Callable[[float], None],
        on_unresponsive: Callable[[float], None],
    ) -> None:
        """`after_sweep` is called with the time after each sweep, `on_unresponsive` with the seconds of silence."""
        self.heard = False
        self._heard_at = -NEVER  # not before the time of the peer's last bytes; updated by sweeps only
        self._on_unresponsive = on_unresponsive
        self.table: dict[int, Call] = {}
        self.peer = ""
        self.sweep_at = NEVER
        self._loop = loop
        self._after_sweep = after_sweep
        self._timer: asyncio.TimerHandle | None = None

    def add(self, opaque: int, now: float, deadline: float, request: str, note: Any) -> asyncio.Future[Any]:
        """Note a call; returns the future of its response."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.table[opaque] = (future, now, deadline, request, note)
        # The scheduled sweep is early enough except for very short time-outs.
        if deadline < self.sweep_at:
            self.sweep_by(min(deadline, now + CALL_SWEEP_S))
        return future

    def too_many(self, request: str) -> TransportError:
        """The failure of a call that is one too many."""
        text = (
            f"{len(self.table)} calls to {self.peer} wait for an answer, no more are taken: "
            f"send slower, or raise pending_calls_max"
        )
        return TransportError(text, address=self.peer, request=request)

    def sweep_by(self, due: float) -> None:
        """Schedule the next sweep at `due`, before the scheduled one."""
        if self._timer is not None:
            self._timer.cancel()
        self.sweep_at = due
        self._timer = self._loop.call_at(due, self._sweep)

    def _sweep(self) -> None:
        self._timer, self.sweep_at = None, NEVER
        now, table = self._loop.time(), self.table
        if self.heard:
            self.heard, self._heard_at = False, now
        silence_s = 0.0
        ended = [opaque for opaque, call in table.items() if call[2] <= now or call[0].done()]
        for opaque in ended:
            future, started, _, request, _ = table.pop(opaque)
            if not future.done():
                elapsed = now - started
                text = f"{self.peer} did not answer {request or 'a request'} within {elapsed:.3f} s"
                future.set_exception(
                    RequestTimeout(
                        text,
                        address=self.peer,
                        request=request,
                        elapsed_s=elapsed,
                        reason=f"no answer within {elapsed:.1f} s",
                    )
                )
                if self._heard_at <= started:
                    silence_s = max(silence_s, elapsed)
        if table:
            nearest = min(call[2] for call in table.values())
            self.sweep_by(min(max(nearest, now), now + CALL_SWEEP_S))
        if silence_s >= UNRESPONSIVE_S:
            self._on_unresponsive(silence_s)
        self._after_sweep(now)

    def fail_all(self, error_of: Callable[[str, float], BaseException], cause: BaseException | None) -> None:
        """Fail each call once, with error_of(request, elapsed_s) whose cause is `cause`."""
        calls = list(self.table.values())
        self.table.clear()
        now = self._loop.time()
        for future, started, _, request, _ in calls:
            if not future.done():
                error = error_of(request, now - started)
                error.__cause__ = cause
                future.set_exception(error)

    def stop_sweeping(self) -> None:
        """Stop sweeping: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.sweep_at = None, NEVER
