"""Size of one micro-batch of a stream. Core.

`maxOffsetsPerTrigger` is divided in proportion to the lag of each queue. `minOffsetsPerTrigger` delays a
batch until the lag reaches it, but not longer than `maxTriggerDelay` after the last batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.message import MessageQueue
from aerobee.spark.offsets import Offsets


def limited(begin: Mapping[MessageQueue, int], end: Offsets, count_max: int) -> Offsets:
    """End offsets that cover at most `count_max` offsets, in proportion to the lag of each queue.

    Each queue with lag gets at least one offset if the limit allows it, so that none starves next to large queues. The sum
    is exactly `count_max` when the lag is larger.
    """
    waiting = {queue: max(0, end[queue] - begin.get(queue, end[queue])) for queue in sorted(end)}
    if sum(waiting.values()) <= count_max:
        return dict(end)
    busy = sorted((queue for queue in waiting if waiting[queue]), key=lambda queue: (-waiting[queue], queue))
    shares = dict.fromkeys(busy[:count_max], 1)
    rest = {queue: waiting[queue] - 1 for queue in shares}
    to_share, total = count_max - len(shares), sum(rest.values())
    for queue, size in rest.items():
        shares[queue] += size * to_share // max(1, total)
    # Rounding leaves less than one offset per queue; the queues with the highest lag, which come first, get
    # it.
    for queue in busy[: count_max - sum(shares.values())]:
        shares[queue] += 1
    return {queue: end[queue] - waiting[queue] + shares.get(queue, 0) for queue in end}


class Admission:
    """Decides when a batch starts. One object per query; times are monotonic seconds."""

    def __init__(self, *, count_min: int | None, delay_max_ms: int) -> None:
        self._count_min = count_min
        self._delay_max_s = delay_max_ms / 1000
        self._batch_at: float | None = None

    def waits(self, waiting_count: int, now_s: float, *, count_min: int | None = None) -> bool:
        """Whether the next batch is delayed. `count_min` overrides the option when Spark passes a minimum."""
        least = self._count_min if count_min is None else count_min
        if self._batch_at is None:
            self._batch_at = now_s  # the delay counts from the start of the query
        if least is None or waiting_count >= least or now_s - self._batch_at >= self._delay_max_s:
            if waiting_count:
                self._batch_at = now_s
            return False
        return True
