"""Deliveries that a channel's consumers have and have not acknowledged, and the prefetch count that bounds them.

Acknowledgements may come from any thread. They go to the broker in the background; a message whose acknowledgement is
lost with this process is redelivered.
"""

from __future__ import annotations

import sys
from typing import Any

from kombu.transport import virtual

from aerobee.contrib.delivery import Delivery, Verdict


class QoS(virtual.QoS):
    """Kombu's QoS of a channel; `_delivered` maps each delivery tag to its message."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._deliveries: dict[str, Delivery] = {}

    @property
    def unacked_count(self) -> int:
        """Deliveries that count against the prefetch count."""
        return len(self._deliveries)

    def can_consume(self) -> bool:
        """Whether the prefetch count allows one more delivery."""
        return not self.prefetch_count or len(self._deliveries) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """How many more deliveries the prefetch count allows; None: any number."""
        if not self.prefetch_count:
            return None
        free: int = self.prefetch_count - len(self._deliveries)
        return max(0, free)

    def hold(self, message: Any, delivery: Delivery) -> None:
        """Remember a delivery until it is acknowledged or rejected."""
        self._deliveries[message.delivery_tag] = delivery
        self.append(message, message.delivery_tag)

    def append(self, message: Any, delivery_tag: str) -> None:
        self._delivered[delivery_tag] = message

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge; an unknown tag, for example of a consumer without acknowledgements, changes nothing."""
        self._end(delivery_tag, Verdict.ACK)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeue: redeliver immediately, at most as often as the group allows. Else: make it a dead letter."""
        self._end(delivery_tag, Verdict.REQUEUE if requeue else Verdict.DEAD_LETTER)

    def restore_unacked(self) -> list[Any]:
        """Return every delivery to its queue; the deliveries do not count as tries."""
        for delivery_tag in tuple(self._deliveries):
            self._end(delivery_tag, Verdict.RETURN)
        self._delivered.clear()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """restore_unacked() at most once."""
        self._on_collect.cancel()
        if self._delivered.restored:
            return
        if self._deliveries:
            count = len(self._deliveries)
            print(f"Returning {count} unacknowledged message(s)", file=stderr or sys.stderr)
        self.restore_unacked()
        self._delivered.restored = True

    def _end(self, delivery_tag: str, verdict: Verdict) -> None:
        delivery = self._deliveries.pop(delivery_tag, None)
        self._delivered.pop(delivery_tag, None)
        if delivery is not None:
            self.channel.settle(delivery, verdict)
