"""Places that viewers hold, shared fairly: at the bound whoever holds most gives up the oldest of his. Core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Place:
    """One place that is held. `end` is called when it goes to another viewer."""

    viewer: str
    end: Callable[[], None]


class FairShare:
    """Up to `places_max()` places. A viewer is a user, or an address where nobody logs in."""

    def __init__(self, places_max: Callable[[], int]) -> None:
        self._places_max = places_max
        self._held: dict[str, dict[Place, None]] = {}  # the oldest first
        self._count = 0

    def take(self, viewer: str, end: Callable[[], None]) -> Place | None:
        """A place, until leave(). At the bound the viewer with most places loses his oldest, if he then has no fewer than this one;
        None where no viewer has more than his share."""
        if self._count >= self._places_max():
            most = max(self._held.values(), key=len, default={})
            if len(most) <= len(self._held.get(viewer, ())) + 1:
                return None
            oldest = next(iter(most))
            self.leave(oldest)
            oldest.end()
        place = Place(viewer, end)
        self._held.setdefault(viewer, {})[place] = None
        self._count += 1
        return place

    def leave(self, place: Place) -> None:
        """Give it back. A second call does nothing."""
        held = self._held.get(place.viewer, {})
        if place in held:
            del held[place]
            self._count -= 1
        if not held:
            self._held.pop(place.viewer, None)
