"""Leases of masters: no broker replaces a master before its lease expires. Core, in the memory of the leading
controller.

A lease is granted with the answer to a heartbeat, for a number of milliseconds. The master counts from the moment at
which it sent the heartbeat, the controller from the moment at which it answers, each by its own monotonic clock. The
controller adds the maximum drift of two clocks, so the master's lease expires first. Invariants:

- Only a controller whose leadership is confirmed grants leases, for the master and epoch that it has applied.
- No broker replaces a master before free_at_ms(); during that wait no lease is granted (withhold).
- A new leader does not know the grants of its predecessor: it waits one lease for every master.
"""

from __future__ import annotations

CLOCK_DRIFT_RATIO_MAX = 0.02


class MasterLeases:
    """Granted leases, by broker name."""

    def __init__(self, lease_ms: float) -> None:
        self.lease_ms = lease_ms
        self._granted_before_ms = float("-inf")
        self._until_ms: dict[str, float] = {}
        self._withheld: dict[str, int] = {}

    @property
    def waited_ms(self) -> float:
        """Time that a controller waits for a grant to expire, by its own clock."""
        return self.lease_ms * (1 + CLOCK_DRIFT_RATIO_MAX) / (1 - CLOCK_DRIFT_RATIO_MAX)

    def begin(self, now_ms: float) -> None:
        """This controller leads from now on; another one may have granted leases up to this moment."""
        self._granted_before_ms = now_ms + self.waited_ms
        self._until_ms.clear()

    def grant(self, broker_name: str, now_ms: float) -> float:
        """Return how many milliseconds are granted; 0 while an election waits for this lease to expire."""
        if broker_name in self._withheld:
            return 0.0
        self._until_ms[broker_name] = now_ms + self.waited_ms
        return self.lease_ms

    def withhold(self, broker_name: str) -> None:
        """Grant nothing more to this group's master, until release()."""
        self._withheld[broker_name] = self._withheld.get(broker_name, 0) + 1

    def release(self, broker_name: str) -> None:
        left = self._withheld[broker_name] - 1
        if left:
            self._withheld[broker_name] = left
        else:
            del self._withheld[broker_name]

    def free_at_ms(self, broker_name: str) -> float:
        """From when on no master of this group can believe in a lease."""
        return max(self._granted_before_ms, self._until_ms.get(broker_name, float("-inf")))

    def forget_past(self, now_ms: float) -> None:
        """Drop expired leases, so that names of groups that are gone do not stay."""
        self._until_ms = {name: until for name, until in self._until_ms.items() if until > now_ms}
