"""Results of the Python backend: the classes behind the protocols of seam.py, whose docstrings describe the fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aerobee.broker.fastpath.seam import Appended, Authorization, LeveledReplies, PendingFrame
from aerobee.broker.fastpath.seam import PullResult as AnyPullResult
from aerobee.remoting.request_stats import Answers


class AppendedFields(NamedTuple):
    """Field names for seam.Appended, for readers: `AppendedFields._make(appended).topic`."""

    topic: str
    message_count: int
    byte_count: int
    request_count: int
    larger: Sequence[int]


class PullResult:
    """seam.PullResult. Created without arguments, then the fields are set: a constructor with arguments costs twice as
    much."""

    __slots__ = (
        "authorization", "commit_offset", "held", "next_offset", "queue_id",
    )  # fmt: skip

    authorization: Authorization
    queue_id: int
    next_offset: int
    commit_offset: int | None
    held: PendingFrame | None


class BurstResult:
    """seam.BurstResult. Created like PullResult."""

    __slots__ = (
        "deferred_answers",
        "deferred_replies",
        "fault",
        "is_slow",
        "leveled_replies",
        "pulled",
        "replies",
        "stored_count",
        "used",
    )

    replies: bytes
    used: int
    is_slow: bool
    deferred_replies: bytes
    deferred_answers: Answers
    leveled_replies: Sequence[LeveledReplies]
    stored_count: int
    pulled: Sequence[AnyPullResult]
    fault: BaseException | None


class DeliveryResult(NamedTuple):
    """seam.DeliveryResult."""

    delivered_count: int
    appended: Sequence[Appended]
    fault: BaseException | None
