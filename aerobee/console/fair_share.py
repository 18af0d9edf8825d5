"""A bounded number of slots, shared fairly among viewers: at the bound the viewer with most slots loses the oldest. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Slot:
    """One slot in use. `end` is called when the slot goes to another viewer."""

    viewer: str
    end: Callable[[], None]


class FairShare:
    """Up to `slots_max()` slots. A viewer is a user, or an address if the console has no login."""

    def __init__(self, slots_max: Callable[[], int]) -> None:
        self._slots_max = slots_max
        self._held: dict[str, dict[Slot, None]] = {}  # the oldest first
        self._count = 0

    def take(self, viewer: str, end: Callable[[], None]) -> Slot | None:
        """A slot, until leave(). At the bound the viewer with most slots loses the oldest, if that viewer then has no fewer slots
        than this one; None if no viewer has more than a fair share."""
        if self._count >= self._slots_max():
            most = max(self._held.values(), key=len, default={})
            if len(most) <= len(self._held.get(viewer, ())) + 1:
                return None
            oldest = next(iter(most))
            self.leave(oldest)
            oldest.end()
        slot = Slot(viewer, end)
        self._held.setdefault(viewer, {})[slot] = None
        self._count += 1
        return slot

    def leave(self, slot: Slot) -> None:
        """Release a slot. A second call does nothing."""
        held = self._held.get(slot.viewer, {})
        if slot in held:
            del held[slot]
            self._count -= 1
        if not held:
            self._held.pop(slot.viewer, None)
