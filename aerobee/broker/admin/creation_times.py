"""Durations of the creation of topics and groups, as RocketMQ's histograms.

Source: AdminBrokerProcessor.updateAndCreateTopic, InvocationStatus (RocketMQ).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.broker.metrics.metrics import Registry, Spread
from aerobee.clock import Clock
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer

ENDS_MS = (10.0, 100.0, 1_000.0, 3_000.0, 5_000.0)

Change = Callable[[Peer, RemotingCommand], Coroutine[Any, Any, RemotingCommand]]


class CreationTimes:
    """Duration of each request of one kind that creates or changes topics or groups, until its reply."""

    def __init__(self, registry: Registry, name: str, meaning: str, clock: Clock) -> None:
        self._clock = clock
        self._times: dict[tuple[str, ...], Spread] = {}
        labels = ("invocation_status", "is_system")
        registry.spread(name, meaning, lambda: list(self._times.items()), labels=labels, unit="ms")

    def measured(self, change: Change, is_system: Callable[[RemotingCommand], bool]) -> Handler:
        """Wrap the handler `change` to measure it."""

        async def handle(peer: Peer, request: RemotingCommand) -> RemotingCommand:
            began = self._clock.monotonic()
            status = "failure"
            try:
                reply = await change(peer, request)
                if reply.code == ResponseCode.SUCCESS:
                    status = "success"
                return reply
            finally:
                key = (status, "true" if is_system(request) else "false")
                times = self._times.get(key)
                if times is None:
                    times = self._times[key] = Spread(ENDS_MS)
                times.add((self._clock.monotonic() - began) * 1000)

        return handle
