"""Reduces the faults of a failed run to a short schedule that still fails."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.simulation.outcome import Outcome

Run = Callable[[frozenset[int]], Outcome]  # runs the seed without the faults of these numbers


def shrink(broken: Outcome, run: Run, *, tries_max: int = 60) -> tuple[Outcome, frozenset[int]]:
    """Leave out faults while the same checker still detects the failure: halves first, then single faults.

    Returns the last failed run, and the numbers of the faults that it leaves out.
    """
    left_out: frozenset[int] = frozenset()
    best, tries = broken, 0
    size = max(1, broken.fault_count // 2)
    while size:
        at = 0
        while at < broken.fault_count and tries < tries_max:
            part = frozenset(range(at, at + size)) - left_out
            at += size
            if not part:
                continue
            tries += 1
            found = run(left_out | part)
            if found.checker == broken.checker:
                best, left_out = found, left_out | part
        size //= 2
    return best, left_out
