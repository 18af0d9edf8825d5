"""Live brokers, in the memory of the leading controller. Core. Source DefaultBrokerHeartbeatManager.

Heartbeats are not replicated: commands that result from them (an election, a change of a set) contain their values. A
controller that has just begun to lead has no heartbeats yet, so for one timeout silence proves nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from aerobee.ha.controller.commands import Candidate

TIMEOUT_MS = 10_000  # default time-out of a heartbeat without one
CLOSED_GRACE_MS = 1_500  # time for a broker whose connection ended before this controller led to reconnect
BROKERS_MAX = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker's heartbeat, sent every second. Source BrokerHeartbeatRequestHeader."""

    broker_name: str
    broker_id: int
    address: str = ""
    # address of its HA port, which may be in a separate network; RocketMQ's brokers do not send it
    ha_address: str = ""
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    timeout_ms: int = TIMEOUT_MS
    priority: int = (1 << 31) - 1
    is_disk_sound: bool = True
    is_learner: bool = False  # it follows and never leads, whatever set it was in before


class BrokerLiveness:
    """The last heartbeat of each broker, and its time of arrival."""

    def __init__(self, now_ms: float) -> None:
        self._began_ms = now_ms
        # By time of the last heartbeat, the oldest first.
        self._last: OrderedDict[tuple[str, int], tuple[Heartbeat, float]] = OrderedDict()
        self._ids: dict[str, set[int]] = {}  # of the brokers in _last, by group
        self._closed_ms: dict[tuple[str, int], float] = {}

    def beat(self, heartbeat: Heartbeat, now_ms: float) -> tuple[str, int] | None:
        """Take a heartbeat. Beyond BROKERS_MAX it evicts the broker that was silent for longest, and returns it.

        A broker that says its heartbeats is not that one: no peer sends BROKERS_MAX heartbeats between two of that broker.
        """
        key = (heartbeat.broker_name, heartbeat.broker_id)
        pushed_out = None
        if key not in self._last:
            if len(self._last) >= BROKERS_MAX:
                pushed_out = next(iter(self._last))
                self._forget(*pushed_out)
            self._ids.setdefault(heartbeat.broker_name, set()).add(heartbeat.broker_id)
        self._last[key] = (heartbeat, now_ms)
        self._last.move_to_end(key)
        self._closed_ms.pop(key, None)
        return pushed_out

    def begin_leading(self, now_ms: float) -> None:
        """Restart all time-outs: earlier silence may have been this controller's own absence."""
        self._began_ms = now_ms

    def closed(self, broker_name: str, broker_id: int, now_ms: float) -> None:
        """Its connection ended: it is gone now, not when its timeout has passed."""
        if (broker_name, broker_id) in self._last:
            self._forget(broker_name, broker_id)
            self._closed_ms[broker_name, broker_id] = now_ms

    def last(self, broker_name: str, broker_id: int) -> Heartbeat | None:
        """The last heartbeat of a broker that is connected; None when there is none."""
        found = self._last.get((broker_name, broker_id))
        return found[0] if found is not None else None

    def holder(self, broker_name: str, broker_id: int, now_ms: float) -> str:
        """The address that sent heartbeats under this id within its timeout, whatever its disk; "" for none."""
        found = self._last.get((broker_name, broker_id))
        return found[0].address if found is not None and now_ms - found[1] < found[0].timeout_ms else ""

    def is_alive(self, broker_name: str, broker_id: int, now_ms: float) -> bool:
        """Heard within its timeout, and its disk takes writes: one that cannot write must not lead."""
        found = self._last.get((broker_name, broker_id))
        return found is not None and found[0].is_disk_sound and now_ms - found[1] < found[0].timeout_ms

    def is_surely_gone(self, broker_name: str, broker_id: int, now_ms: float) -> bool:
        """Not alive, and this controller saw it go or has led for long enough to know."""
        if self.is_alive(broker_name, broker_id, now_ms):
            return False
        closed_ms = self._closed_ms.get((broker_name, broker_id))
        led_ms = now_ms - self._began_ms
        if closed_ms is not None and (closed_ms >= self._began_ms or led_ms >= CLOSED_GRACE_MS):
            return True
        return led_ms >= TIMEOUT_MS

    def candidates(self, broker_name: str, now_ms: float) -> tuple[Candidate, ...]:
        """The living brokers of a group that may lead, by id."""
        beats = [(each, self._last[broker_name, each][0]) for each in sorted(self._ids.get(broker_name, ()))]
        return tuple(
            Candidate(broker_id, beat.epoch, beat.max_offset, beat.priority)
            for broker_id, beat in beats
            if not beat.is_learner and self.is_alive(broker_name, broker_id, now_ms)
        )

    def forget_silent(self, now_ms: float) -> list[tuple[str, int]]:
        """Remove the brokers that were silent for longer than their timeout, and return their (broker name, broker
        id).
        """
        gone = [key for key, (beat, at_ms) in self._last.items() if now_ms - at_ms >= beat.timeout_ms]
        for key in gone:
            self._forget(*key)
        if len(self._closed_ms) > BROKERS_MAX:
            self._closed_ms.clear()  # names that never come back: silence for a timeout says the same
        return gone

    def _forget(self, broker_name: str, broker_id: int) -> None:
        del self._last[broker_name, broker_id]
        ids = self._ids[broker_name]
        ids.discard(broker_id)
        if not ids:
            del self._ids[broker_name]
