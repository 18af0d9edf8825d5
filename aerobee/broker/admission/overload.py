"""Says when the broker has more work than it gets done, with the reason and the measured wait.

RocketMQ bounds its thread pools' queues and sheds what waited longer than 200 ms there. One event loop has no such
queues: requests wait in the sockets. What can be measured is how late the loop runs its timers, which is what a
request waits, and how many reply bytes peers have not taken. Sends are refused while either is beyond its bound,
with code 2; pulls and everything else continue, for they relieve the broker.

One request that blocked the event loop by itself is a stall, not load: what waited behind it is served, and the queue is as short as
before. So the time of stalls is no part of the wait (remoting/loop_watch.py measures and names them); that of a send is,
for a store that takes long is what RocketMQ's page cache check looks at.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from aerobee.clock import to_next_step

SAMPLE_S = 0.1
IDLE_SAMPLE_S = 1.0  # while no request comes: a broker without work should cost nothing
PENDING_EVERY = 10  # samples between two looks at what peers have not read: that look visits every connection
SAMPLES_TO_SHED = 2  # one late timer is a hiccup of the machine, two in a row are load
# But one that is later than so many times the limit is load even so, and it is not waited for: the very requests that
# keep it from running are refused, or tens of thousands that arrive together would all be served before the first refusal.
HICCUP_LIMITS = 10


class Overload:
    """Sampled ten times a second, and by each send or burst while a sample is overdue; once a second while no request comes.

    `wait_limit_ms` 0: sends are not refused because of a wait (brokerFastFailureEnable=false).
    It measures the event loop by the loop's own time: a test that moves a Clock ahead has made no request wait.
    """

    def __init__(
        self,
        *,
        wait_limit_ms: int,
        pending_limit_bytes: int,
        pending_bytes: Callable[[], int],
        stalled_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`stalled_s` grows by the time that single requests, other than sends, blocked the event loop."""
        self._wait_limit_ms: float = wait_limit_ms or math.inf
        self._pending_limit_bytes = pending_limit_bytes
        self._pending_bytes = pending_bytes
        self._stalled_s = stalled_s
        self._stalled_before_s = 0.0  # when the sample was armed
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        # These two, and `last_reason` and `is_idle`, are plain attributes: the fast path reads and sets them per burst as
        # asked() does (FastPath.burst).
        self.overdue = math.inf  # from then on a sample that has not come is load
        self._now: Callable[[], float] = float
        self._late_samples = 0
        self._samples = 0
        self.was_asked = False  # since the last sample
        self.is_idle = False  # no request came for a while, so samples are rare
        self._last_pending_bytes = 0
        self.wait_ms = 0
        self.wait_max_ms = 0
        self.refused_count = 0
        self.last_reason = ""  # as of the last sample: read before there is a request

    def count_refused(self) -> None:
        """A send was refused for what `reason` says at that time."""
        self.refused_count += 1

    def set_limits(self, *, wait_limit_ms: int, pending_limit_bytes: int) -> None:
        """Apply other limits immediately: what was refused by the old ones is measured again. Wait limit 0: none."""
        self._wait_limit_ms = wait_limit_ms or math.inf
        self._pending_limit_bytes = pending_limit_bytes
        self._late_samples = 0
        self.last_reason = ""
        if self._timer is not None:
            self.overdue = self._due + HICCUP_LIMITS * self._wait_limit_ms / 1000

    def start(self) -> None:
        """Begin to measure how late the running event loop is, and to look at what is unsent."""
        self._now = asyncio.get_running_loop().time
        self._arm(SAMPLE_S)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.overdue = math.inf
        self.is_idle = False

    @property
    def reason(self) -> str:
        """Why sends are refused now, with the measured wait; empty when they are not."""
        return self.asked()

    def asked(self, now: float | None = None) -> str:
        """Requests have come: sample often from now on, and now when a sample is long overdue. Returns `reason`.

        `now`: the clock's monotonic(), when the caller has just read it; a reading of a clock is a tenth of a small burst. It is
        never behind the loop's time, and ahead of it once the machine was suspended: then each look is a close one."""
        self.was_asked = True
        if self.is_idle:
            self.is_idle = False
            self._arm(min(SAMPLE_S, self._due - self._now()))
        # Asked with each burst, so only a sample that is overdue is looked at closely: stalls can but shorten the wait.
        if (
            (self._now() if now is None else now) > self.overdue
            and not self.last_reason
            and (wait_ms := self._late_ms()) > HICCUP_LIMITS * self._wait_limit_ms
        ):
            self.observe(round(wait_ms), self._last_pending_bytes)
        return self.last_reason

    def observe(self, wait_ms: int, pending_bytes: int) -> None:
        """Take one measurement: how long a ready task waited, and the bytes that peers have not read."""
        self.wait_ms = wait_ms
        self.wait_max_ms = max(self.wait_max_ms, wait_ms)
        self._late_samples = self._late_samples + 1 if wait_ms > self._wait_limit_ms else 0
        if self._late_samples >= SAMPLES_TO_SHED or wait_ms > HICCUP_LIMITS * self._wait_limit_ms:
            self.last_reason = (
                f"[OVERLOAD] the broker is busy: requests wait {wait_ms} ms, more than "
                f"{self._wait_limit_ms} ms are not allowed (waitTimeMillsInSendQueue); try again later"
            )
        elif pending_bytes > self._pending_limit_bytes:
            self.last_reason = (
                f"[REJECTREQUEST] clients have not read {pending_bytes} bytes of replies, more than "
                f"{self._pending_limit_bytes} are not held (pendingReplyBytesMax); measured wait {wait_ms} ms"
            )
        else:
            self.last_reason = ""

    def _sample(self) -> None:
        if self.is_idle or self._samples % PENDING_EVERY == 0:
            self._last_pending_bytes = self._pending_bytes()
        self._samples += 1
        self.observe(round(self._late_ms()), self._last_pending_bytes)
        self.is_idle = not self.was_asked and not self.last_reason
        self.was_asked = False
        self._arm(to_next_step(self._now(), IDLE_SAMPLE_S) if self.is_idle else SAMPLE_S)

    def _late_ms(self) -> float:
        """How late the sample is, without what stalls took since it was armed; not below 0."""
        late_s = self._now() - self._due
        if late_s * 1000 > self._wait_limit_ms:
            late_s -= self._stalled_s() - self._stalled_before_s
        return max(0.0, late_s * 1000)

    def _arm(self, delay_s: float) -> None:
        """Sample so long from now; below 0 for a sample that is overdue, which says how late the loop is."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = self._now() + delay_s
        self.overdue = self._due + HICCUP_LIMITS * self._wait_limit_ms / 1000
        self._stalled_before_s = self._stalled_s()
        self._timer = asyncio.get_running_loop().call_at(self._due, self._sample)
