"""Long polls in the lane: pulls that it found nothing for are held, and answered when a message has released them.

A core reports a pull that has to wait as a `Got` with `waits` (lane/pull.py); `LanePolls.hold` holds it as PullCalls does,
where both kinds wait side by side (pull/held_pulls.py). A released pull is the same frame once more: many of them
are one burst, whose replies are cut apart again. What is not ordinary any more is for PullCalls.resume.

What always holds: the offset in a pull's header is committed when the pull comes in, never when it is released. A message
of the burst in which the pull came in wakes it, too, although its arrival was announced before the pull was held.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.lane.core import Put
from aerobee.broker.lane.pull import Got, PullGrant
from aerobee.broker.pull.held_pulls import HeldPull, HeldPulls
from aerobee.remoting.connection import Connection
from aerobee.store.message_store import MessageStore

FRAME_BYTES_MAX = 64 << 10  # of one pull in a burst of released ones; a larger one is for PullCalls

# As LaneCore.burst, of (data, position)
PullBurst = Callable[[bytes, int], tuple[bytes, int, bool, bytes, list[Put], list[Got]]]
Answered = tuple[HeldPull, Got, bytes]  # and its encoded reply


class LanePolls:
    """Parks what the lane's cores leave waiting."""

    def __init__(self, store: MessageStore, held: HeldPulls, resume: Callable[[HeldPull], None]) -> None:
        self._store = store
        self._resume = resume
        self._held = held

    def hold(
        self, connection: Connection, grant: PullGrant, queue_id: int, offset: int, frame: bytes, hold_ms: int
    ) -> None:
        """Hold a pull for a message at `offset`; with no room for it, or while the broker stops, answer it at once."""
        held, topic = self._held, grant.topic
        pull = HeldPull(
            connection, frame, grant.group, topic, queue_id, grant.tag_codes, grant.accept, self._resume
        )
        if held.is_full_for(connection):
            pull.resume(pull)
            return
        held.hold(pull, hold_ms / 1000)
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return
        for at in range(offset, queue.readable_max):
            entry = queue.entry(at)
            if entry is not None and pull.is_held:
                held.on_appended(topic, queue_id, at + 1, entry[2])


def answer_released(burst: PullBurst, pulls: list[HeldPull]) -> tuple[list[Answered], list[HeldPull]]:
    """Serve released pulls in bursts: those that found messages, and those that are for PullCalls.resume."""
    answered: list[Answered] = []
    others = [pull for pull in pulls if len(pull.frame) > FRAME_BYTES_MAX]
    if others:
        pulls = [pull for pull in pulls if len(pull.frame) <= FRAME_BYTES_MAX]
    data = b"".join([pull.frame for pull in pulls])
    position = served = 0
    while served < len(pulls):
        replies, used, is_slow, _, _, gets = burst(data, position)
        reply_at = 0
        for pull, got in zip(pulls[served:], gets, strict=False):
            if got[6] is None:
                reply_end = reply_at + 4 + int.from_bytes(replies[reply_at : reply_at + 4], "big")
                answered.append((pull, got, replies[reply_at:reply_end]))
                reply_at = reply_end
            else:
                others.append(pull)
        served, position = served + len(gets), used
        if is_slow:
            others.append(pulls[served])
            position += len(pulls[served].frame)
            served += 1
        elif not gets:
            others += pulls[served:]  # the lane was closed
            break
    return answered, others
