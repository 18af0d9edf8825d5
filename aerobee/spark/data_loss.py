"""Requested messages that no longer exist, with the cause. No I/O.

Only the offset range of a queue is visible. So a recreated topic with as many messages as before looks
unchanged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue
from aerobee.spark.boundaries import Bounds
from aerobee.spark.offsets import Offsets, queue_name
from aerobee.words import plural

log = logging.getLogger(__name__)

RETENTION = "they were deleted, by retention or by an operator, before they were read"
SHORTER = "the queue ends before them: the topic was deleted and recreated, or its broker's log lost its end"
BEHIND = "no master of its broker is registered now, and the registered slave does not have them"
NO_QUEUE = "the topic has no such queue any more: its queues were reduced, or it was deleted"


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets of a queue from `begin` to before `end` that no longer exist, and the cause."""

    queue: MessageQueue
    begin: int
    end: int
    cause: str

    def __str__(self) -> str:
        count = self.end - self.begin
        what = (
            f"offsets {self.begin} to {self.end - 1} ({plural(count, 'message')})"
            if count > 0
            else f"offset {self.begin} and all after"
        )
        return f"{self.queue.topic} {queue_name(self.queue)} has lost {what}: {self.cause}"


class DataLost(AerobeeError):
    """Messages that the read must return no longer exist, and failOnDataLoss is true."""


def losses(start: Offsets, bounds: dict[MessageQueue, Bounds]) -> list[Loss]:
    """Lost messages of queues to read from `start` on. Queues without bounds are skipped."""
    found = []
    for queue in sorted(start):
        has, begin = bounds.get(queue), start[queue]
        if has is None:
            continue
        if begin < has.begin:
            found.append(Loss(queue, begin, has.begin, RETENTION if has.is_masters else BEHIND))
        elif begin > has.end:
            found.append(Loss(queue, has.end, begin, SHORTER if has.is_masters else BEHIND))
    return found


def resume_at(begin: int, has: Bounds) -> int:
    """The offset to continue at after a loss: the first stored message, also of a recreated queue."""
    return has.begin if has.is_masters and (begin < has.begin or begin > has.end) else begin


def report(found: list[Loss], *, fail: bool) -> None:
    """Raise DataLost for the losses, or log each as a warning."""
    if not found:
        return
    if fail:
        texts = "; ".join(str(loss) for loss in found[:8])
        more = f"; and {plural(len(found) - 8, 'more queue')}" if len(found) > 8 else ""
        raise DataLost(
            f"{texts}{more}. Set failOnDataLoss=false to continue with the stored messages, or start with a new checkpoint"
        )
    for loss in found:
        log.warning("%s; continuing without them (failOnDataLoss=false)", loss)
