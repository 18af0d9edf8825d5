"""Starts and stops the services of a master: delay levels and features start one after the other, and failed ones are
retried.

    lead_now()  at the start of a master, which has loaded everything
    lead()      the broker becomes master while it runs: wait until it may answer producers (a lease) and its log is
                readable as far as it was copied, then start one feature after the other. The event loop stays free: ordinary messages are served before that, and the
                broker refuses requests for a feature until it has started (unserved.py)
    resign()    the broker is no longer master

A failed feature is retried every second; features that depend on it wait. When attempts fail for GIVE_UP_S the broker
hands its mastership to another replica, if one can lead, at most once per GIVE_UP_PAUSE_S: a fault that all replicas
share does not cause a cycle of elections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from aerobee.broker.metrics.metrics import Registry
from aerobee.broker.state.feature import Feature
from aerobee.broker.state.unserved import STARTING, UnservedKinds
from aerobee.clock import Clock
from aerobee.errors import AerobeeError

log = logging.getLogger(__name__)

LEASE_LOOK_S = 0.02
RETRY_S = 1.0
GIVE_UP_S = 3.0  # a disk that is slow or full for a moment must not change the master
GIVE_UP_PAUSE_S = 600.0

HandOver = Callable[[str], Awaitable[bool]]  # reason -> whether another replica leads now


class Leading:
    """Services of a master at this broker. `leads`: whether they run or are being started. Belongs to the event
    loop.
    """

    def __init__(
        self,
        *,
        features: Sequence[Feature],
        unserved: UnservedKinds,
        may_answer: Callable[[], bool],
        log_end: Callable[[], int],
        readable_end: Callable[[], int],
        hand_over: HandOver | None,
        clock: Clock,
    ) -> None:
        """`may_answer`: whether this broker is surely the master at this moment. `readable_end`: the physical offset up to which
        features can read the log, which with sync flush is behind `log_end` while the disk syncs what was copied last. `hand_over`
        lets the controllers elect another replica; None: there are no controllers."""
        self.leads = False
        self._features = tuple(features)
        self._unserved = unserved
        self._may_answer = may_answer
        self._log_end = log_end
        self._readable_end = readable_end
        self._hand_over = hand_over
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._started: set[str] = set()
        self._gave_up_s = float("-inf")

    def register_numbers(self, registry: Registry) -> None:
        """The features that this broker cannot serve, for metrics."""
        registry.gauges(
            "feature_unserved",
            "1: this master refuses requests of the feature, because it could not start; absent"
            " while it serves them",
            lambda: [((name,), 1) for name in list(self._unserved.reasons)],
            labels=("feature",),
        )
        registry.counter(
            "feature_start_failures",
            "Attempts of a master to start a feature that failed",
            lambda: [((), self._unserved.failed_count)],
        )

    def follow(self) -> None:
        """This broker starts as a slave."""
        for feature in self._features:
            feature.follow()

    def lead_now(self) -> None:
        """Start every feature. Raises the errors of the features."""
        self.leads = True
        for feature in self._features:
            feature.start()
            self._started.add(feature.name)

    def lead(self) -> None:
        """Start to take over as master."""
        self.leads = True
        self._started.clear()
        self._unserved.put([feature.name for feature in self._features], STARTING)
        self._task = asyncio.create_task(self._take_over(self._log_end()), name="take-over")

    def log_cut(self, log_offset: int) -> None:
        """This slave's log was truncated."""
        for feature in self._features:
            _tried(partial(feature.log_cut, log_offset), feature.name)

    def resign(self) -> None:
        """Stop leading; each feature follows the log from now on."""
        self.leads = False
        self._end_task()
        self._started.clear()
        self._unserved.clear()
        for feature in self._features:
            _tried(feature.resign, feature.name)
            _tried(feature.follow, feature.name)

    def stop(self) -> None:
        """Cancel timers and tasks; nothing is written."""
        self._end_task()
        for feature in self._features:
            feature.stop()

    def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _take_over(self, log_end: int) -> None:
        # What the last master wrote below `log_end` would be in no feature's state if it became readable after they read the log.
        while not self._may_answer() or self._readable_end() < log_end:
            await self._clock.sleep(LEASE_LOOK_S)
        for feature in self._features:
            _tried(feature.stop, feature.name)  # following the log ends here
        failing_since_s: float | None = None
        while True:
            for feature in self._features:
                if feature.name not in self._started:
                    await self._try(feature)
            now_s = self._clock.monotonic()
            if len(self._started) == len(self._features):
                return
            failing_since_s = now_s if failing_since_s is None else failing_since_s
            if now_s - failing_since_s >= GIVE_UP_S and await self._give_up(now_s):
                return
            await self._clock.sleep(RETRY_S)

    async def _try(self, feature: Feature) -> None:
        """Start one feature, or record why it cannot start."""
        name, unserved = feature.name, self._unserved
        missing = [each for each in feature.needs if each not in self._started]
        if missing:
            unserved.put([name], f"it needs {missing[0]}, which cannot be served")
            return
        try:
            await feature.take_over()
            feature.start()
        except Exception as error:
            # Boundary of a feature: its failure must stop neither other features nor ordinary messages.
            unserved.failed_count += 1
            reason = str(error) or repr(error)
            if unserved.reasons.get(name) != reason:
                is_known = isinstance(error, AerobeeError | OSError)
                log.error(
                    "this master cannot serve %s: %s; it refuses requests that need it and retries",
                    name, reason, exc_info=None if is_known else error,
                )  # fmt: skip
            unserved.put([name], reason)
            _tried(feature.stop, name)
            return
        if unserved.take(name) not in ("", STARTING):
            log.warning("this master serves %s again", name)
        self._started.add(name)

    async def _give_up(self, now_s: float) -> bool:
        """Hand the mastership over; returns whether another replica has it now."""
        if self._hand_over is None or now_s - self._gave_up_s < GIVE_UP_PAUSE_S:
            return False
        self._gave_up_s = now_s
        try:
            return await self._hand_over(self._unserved.text())
        except Exception:
            # Boundary of replication: this task retries whether or not the hand-over succeeds.
            log.exception("no other replica could become master; this one stays master")
            return False


def _tried(step: Callable[[], None], name: str) -> None:
    """Call `action`; a failure is logged and stops no other feature."""
    try:
        step()
    except Exception:
        log.exception("%s failed to follow a change of role", name)
