"""Detects overload, with the reason and the measured wait.

RocketMQ bounds its thread pools' queues and sheds requests that waited there longer than 200 ms. An event loop has no
such queues: requests wait in the sockets. Two values are measured instead: the lateness of the event loop's timers,
which equals the wait of a request, and the reply bytes that peers have not read. Sends are refused with code 2 while
either exceeds its bound; pulls and all other requests continue, because they relieve the broker.

One request that blocked the event loop by itself is a stall, not load: the requests that waited are served, and the
queue is as short as before. So the wait excludes the time of stalls (remoting/loop_watch.py measures and names them).
It includes the time of a slow send, because a slow store is what RocketMQ's page cache check detects.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from aerobee.clock import to_next_step

SAMPLE_S = 0.1
IDLE_SAMPLE_S = 1.0  # sample interval while no request arrives, so that an idle broker uses no CPU
PENDING_EVERY = 10  # samples between two sums of unread reply bytes: the sum visits every connection
# One late timer is a hiccup of the machine, two in a row are load. One sample that is later than this
# multiple of the limit counts as load by itself, before its timer runs: the requests that delay the timer are
# refused, otherwise tens of thousands of simultaneous requests would be served before the first refusal.
SAMPLES_TO_SHED = 2
HICCUP_LIMITS = 10


class Overload:
    """Sampled ten times a second, and by each send or burst while a sample is overdue; once a second while no request
    arrives.

    `wait_limit_ms` 0: sends are not refused because of a wait (brokerFastFailureEnable=false). It measures the event
    loop by the loop's own time, because a test that moves a Clock ahead delays no request.
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
        self._stalled_before_s = 0.0  # time at which the sample was scheduled
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        # These two, and `last_reason` and `is_idle`, are plain attributes: the fast path reads and sets them per burst as
        # asked() does (FastPath.burst).
        self.overdue = math.inf  # time from which a missing sample counts as load
        self._now: Callable[[], float] = float
        self._late_samples = 0
        self._samples = 0
        self.was_asked = False  # number of requests since the last sample
        self.is_idle = False  # no request arrived for a while, so samples are rare
        self._last_pending_bytes = 0
        self.wait_ms = 0
        self.wait_max_ms = 0
        self.refused_count = 0
        self.last_reason = ""  # as of the last sample: read before there is a request

    def count_refused(self) -> None:
        """A send was refused for the present `reason`."""
        self.refused_count += 1

    def set_limits(self, *, wait_limit_ms: int, pending_limit_bytes: int) -> None:
        """Apply other limits immediately; a refusal by the old limits ends until the next measurement. Wait limit 0:
        none."""
        self._wait_limit_ms = wait_limit_ms or math.inf
        self._pending_limit_bytes = pending_limit_bytes
        self._late_samples = 0
        self.last_reason = ""
        if self._timer is not None:
            self.overdue = self._due + HICCUP_LIMITS * self._wait_limit_ms / 1000

    def start(self) -> None:
        """Start to measure the lateness of the running event loop and the unsent reply bytes."""
        self._now = asyncio.get_running_loop().time
        self._arm(SAMPLE_S)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.overdue = math.inf
        self.is_idle = False

    @property
    def reason(self) -> str:
        """Reason for refusing sends now, with the measured wait; empty when they are accepted."""
        return self.asked()

    def asked(self, now: float | None = None) -> str:
        """Requests have arrived: sample often from now on, and immediately if a sample is long overdue. Returns `reason`.

        `now`: the clock's monotonic(), if the caller has just read it; reading a clock costs a tenth of a small burst.
        It is never behind the event loop's time, and ahead of it after the machine was suspended: then every call
        measures exactly."""
        self.was_asked = True
        if self.is_idle:
            self.is_idle = False
            self._arm(min(SAMPLE_S, self._due - self._now()))
        # Called for each burst, so only an overdue sample is measured exactly: subtracting stalls can only
        # shorten the wait.
        if (
            (self._now() if now is None else now) > self.overdue
            and not self.last_reason
            and (wait_ms := self._late_ms()) > HICCUP_LIMITS * self._wait_limit_ms
        ):
            self.observe(round(wait_ms), self._last_pending_bytes)
        return self.last_reason

    def observe(self, wait_ms: int, pending_bytes: int) -> None:
        """Take one measurement: the wait of a ready task, and the reply bytes that peers have not read."""
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
        """Lateness of the sample without the stalls since it was scheduled; not below 0."""
        late_s = self._now() - self._due
        if late_s * 1000 > self._wait_limit_ms:
            late_s -= self._stalled_s() - self._stalled_before_s
        return max(0.0, late_s * 1000)

    def _arm(self, delay_s: float) -> None:
        """Schedule a sample after this time; below 0 for an overdue sample, which measures the lateness of the event
        loop."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = self._now() + delay_s
        self.overdue = self._due + HICCUP_LIMITS * self._wait_limit_ms / 1000
        self._stalled_before_s = self._stalled_s()
        self._timer = asyncio.get_running_loop().call_at(self._due, self._sample)
