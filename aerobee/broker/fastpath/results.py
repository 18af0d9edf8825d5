"""What the Python backend hands to its shell; seam.py explains the fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aerobee.broker.fastpath.seam import Authorization


class Appended(NamedTuple):
    """seam.Appended."""

    topic: str
    message_count: int
    byte_count: int
    request_count: int


class HeldFrame(NamedTuple):
    """seam.HeldFrame."""

    frame: bytes
    hold_ms: int


class PullResult(NamedTuple):
    """seam.PullResult."""

    authorization: Authorization
    queue_id: int
    next_offset: int
    commit_offset: int | None
    message_count: int
    byte_count: int
    held: HeldFrame | None


class BurstResult(NamedTuple):
    """seam.BurstResult."""

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
