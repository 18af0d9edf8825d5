"""Distribution of pending timer messages over the next day, counted in the wheel, as a metric. Core.

The wheel has 86,400 slots for a day: they are counted in slices, so that other requests are served in between.

Source: DefaultStoreMetricsManager, TimerMetrics.timerDist (RocketMQ).
"""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.broker.metrics.metrics import Labels, SampleBlock, Value
from aerobee.clock import Clock
from aerobee.store.timer.timer_wheel import TimerWheel

# Each counts from the one before it on.
BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
SLOTS_A_PIECE = 2_048
_NOTHING_YET = SampleBlock("timer_message_snapshot", None, None, tuple, tuple)


class WheelSnapshot:
    """The distribution as a metric. Each read() counts again."""

    def __init__(self, wheel: TimerWheel, clock: Clock) -> None:
        self._wheel = wheel
        self._clock = clock

    def read(self) -> list[tuple[Labels, Value]]:
        """By bound, in one read."""
        blocks = list(self.blocks())
        return [pair for block in blocks for pair in zip(block.labels(), block.values(), strict=True)]

    def blocks(self) -> Iterator[SampleBlock]:
        """The same with one bound a block, and a block without samples after each piece of work."""
        precision_ms, at_ms = self._wheel.precision_ms, self._clock.now_ms()
        begin = 0
        for bound_s in BOUNDS_S:
            end, count = bound_s * 1000 // precision_ms, 0
            while begin < end:
                some = min(SLOTS_A_PIECE, end - begin)
                count += self._wheel.count(at_ms + begin * precision_ms, some)
                begin += some
                yield _NOTHING_YET
            yield _of_bound(bound_s, count)


def _of_bound(bound_s: int, count: int) -> SampleBlock:
    labels: tuple[Labels, ...] = ((str(bound_s),),)
    key = ("timer_message_snapshot", bound_s)
    return SampleBlock(key, count, key, lambda: labels, lambda: (count,))
