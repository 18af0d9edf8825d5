"""Selects the master of a group. Core. Source DefaultElectPolicy of RocketMQ.

Only a broker in the sync state set has everything that was confirmed, so only such a one is elected, unless losing
messages is allowed for once.
"""

from __future__ import annotations

from collections.abc import Iterable

from aerobee.ha.controller.commands import Candidate


def choose(
    candidates: Iterable[Candidate],
    *,
    known: Iterable[int],
    in_sync: Iterable[int],
    preferred_id: int = 0,
    is_unclean_allowed: bool = False,
) -> Candidate | None:
    """The one with the newest epoch, then the longest log, then the smallest priority, then the smallest id.

    `candidates` are the living brokers. A preferred one wins if it may, and no other does then. None when none may.
    """
    allowed = set(known) if is_unclean_allowed else set(in_sync) & set(known)
    living = [each for each in candidates if each.broker_id in allowed]
    if preferred_id:
        living = [each for each in living if each.broker_id == preferred_id]
    return min(
        living,
        key=lambda each: (-each.epoch, -each.max_offset, each.priority, each.broker_id),
        default=None,
    )
