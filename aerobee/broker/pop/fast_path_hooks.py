"""What serves POP's ordinary requests before the handlers do."""

from __future__ import annotations

from aerobee.broker.pop.ack_calls import AckCalls


class PopFastPath:
    """fastpath.pop.PopHooks."""

    def __init__(self, *, acks: AckCalls) -> None:
        self.ack = acks.ack_ordinary
