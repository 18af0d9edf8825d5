"""The offset up to which enough replicas have the log, and the appends that wait for it (GroupTransferService of
RocketMQ). Core.

One offset releases all appends that wait below it. RocketMQ checks its requests one after the other, so a late one
delays those behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aerobee.broker.admission.ack import Replicated
from aerobee.clock import Clock, Timer

Verdict = Callable[[Replicated], None]


class ReplicaAcks:
    """The ReplicationWatermark of both modes. Belongs to the event loop.

    `value` only grows while a broker is master; who computes it, the mode of replication, calls advance().
    """

    def __init__(self, *, clock: Clock, timeout_s: Callable[[], float]) -> None:
        """`timeout_s`: how long an append waits before it is answered as not confirmed (slaveTimeout)."""
        self.value = 0  # physical offset
        self._at_all = 0  # up to there every broker that may be the next master has it
        self._clock = clock
        self._timeout_s = timeout_s
        self._waiting: deque[tuple[int, float, Verdict]] = deque()  # by offset, and so by deadline
        self._timer: Timer | None = None

    @property
    def waiting_count(self) -> int:
        """How many appends wait for replicas."""
        return len(self._waiting)

    def when(self, offset: int, callback: Verdict) -> None:
        """Call back once when the value reaches `offset`, immediately if it has, TOO_LATE when it does not in time: ENOUGH when every
        broker that may be the next master has it, HERE when that is not known.

        Offsets come in order, as the log grows.
        """
        if offset <= self.value:
            callback(Replicated.ENOUGH if offset <= self._at_all else Replicated.HERE)
            return
        timeout_s = self._timeout_s()
        assert not self._waiting or self._waiting[-1][0] <= offset, "appends wait in the order of the log"
        self._waiting.append((offset, self._clock.monotonic() + timeout_s, callback))
        if self._timer is None:
            self._timer = self._clock.call_later(timeout_s, self._expire)

    def advance(self, offset: int, *, is_at_all: bool = True) -> None:
        """Enough replicas have the log up to here. A lower offset than before changes nothing.

        `is_at_all`: every broker that may be the next master has it; else this one answers for as long as it is the master.
        """
        if offset <= self.value:
            return
        self.value = offset
        if is_at_all:
            self._at_all = offset
        assert self._at_all <= self.value, "more is with all replicas than with enough of them"
        waiting, verdict = self._waiting, Replicated.ENOUGH if is_at_all else Replicated.HERE
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[2](verdict)
        self._settle_timer()

    def restart(self, offset: int) -> None:
        """A new term begins with a log that ends at `offset`: pending appends are answered as unconfirmed."""
        self.fail(Replicated.TOO_LATE)
        self.value = self._at_all = offset

    def fail(self, verdict: Replicated) -> None:
        """Answer every waiter: the replicas will not confirm it any more."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, callback in waiting:
            callback(verdict)
        self._settle_timer()

    def _expire(self) -> None:
        self._timer = None
        now, waiting = self._clock.monotonic(), self._waiting
        while waiting and waiting[0][1] <= now:
            waiting.popleft()[2](Replicated.TOO_LATE)
        if waiting and self._timer is None:
            self._timer = self._clock.call_later(max(0.0, waiting[0][1] - now), self._expire)

    def _settle_timer(self) -> None:
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None


def confirmed_by(offsets: list[int], copies: int) -> int:
    """The offset up to which `copies` of the logs that end at `offsets` have everything; 0 when there are fewer."""
    if len(offsets) < copies:
        return 0
    return sorted(offsets, reverse=True)[copies - 1]
