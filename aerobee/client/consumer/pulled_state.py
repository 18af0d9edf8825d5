"""The present state of the queues that a consumer pulls, for its meter."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.client.base.metering import ClientState
from aerobee.client.consumer.queue_pull import QueuePull
from aerobee.message import MessageQueue


def add_pulls(state: ClientState, pulls: Mapping[MessageQueue, QueuePull]) -> None:
    """Add the owned queues, their buffered messages and their lag, by topic. May be called in any thread."""
    for queue, pull in tuple(pulls.items()):
        topic, process = queue.topic, pull.process
        state.queues[topic] = state.queues.get(topic, 0) + 1
        state.buffered[topic] = state.buffered.get(topic, 0) + process.count
        state.buffered_bytes[topic] = state.buffered_bytes.get(topic, 0) + process.cached_bytes
        if pull.max_offset >= 0:
            lag = max(0, pull.max_offset - process.peek_commit_offset())
            state.lag[topic] = state.lag.get(topic, 0) + lag
