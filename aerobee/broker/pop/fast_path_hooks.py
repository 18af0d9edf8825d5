"""What serves POP's ordinary requests before the handlers do."""

from __future__ import annotations

from aerobee.broker.pop.ack_calls import AckCalls
from aerobee.broker.pop.pop_calls import PopCalls


class PopFastPath:
    """fastpath.pop.PopHooks."""

    def __init__(self, *, pops: PopCalls, acks: AckCalls) -> None:
        self.pop = pops.pop_ordinary
        self.ack = acks.ack_ordinary
