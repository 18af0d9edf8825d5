"""Names for what backends hand out (seam.py): for those who read a result, not for each burst.

`PullFields._make(result).next_offset` is a field of seam.PullResult.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aerobee.broker.fastpath.seam import Appended, Authorization, HeldFrame, PullResult


class AppendedFields(NamedTuple):
    """Of seam.Appended."""

    topic: str
    message_count: int
    byte_count: int
    request_count: int


class PullFields(NamedTuple):
    """Of seam.PullResult."""

    authorization: Authorization
    queue_id: int
    next_offset: int
    commit_offset: int | None
    message_count: int
    byte_count: int
    pull_count: int
    held: HeldFrame | None


class BurstFields(NamedTuple):
    """Of seam.BurstResult."""

    replies: bytes
    used: int
    is_slow: bool
    held_replies: bytes
    appended: Sequence[Appended]
    pulled: Sequence[PullResult]
    fault: BaseException | None


class DeliveryResult(NamedTuple):
    """seam.DeliveryResult."""

    delivered_count: int
    appended: Sequence[Appended]
    fault: BaseException | None
