"""Long polls on the fast path: pulls without a message stay pending, and are answered when a message releases them.

A backend reports a pull that must wait as a PullResult with a PendingFrame; `LongPolls.hold` adds it to the table that
PullCalls uses, too (pull/pending_pulls.py). A released pull is processed as the same frame again: many released pulls
form one burst, whose replies are then separated. Pulls that are no longer ordinary go to PullCalls.resume.

Invariants: the offset in a pull's header is committed when the pull arrives, never when it is released. A message in
the same burst as the pull releases it, too, although its arrival was announced before the pull was pending.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aerobee.broker.fastpath.seam import Authorization, BurstResult, PendingFrame, PullResult
from aerobee.broker.pull.pending_pulls import PendingPull, PendingPulls
from aerobee.remoting.peer import Peer
from aerobee.store.message_store import MessageStore
from aerobee.words import plural

_LOG = logging.getLogger(__name__)

# Maximum size of one pull in a burst of released ones; PullCalls serves larger ones.
FRAME_BYTES_MAX = 64 << 10

PullBurst = Callable[[bytes, int], BurstResult]  # as Backend.burst, of (data, position)
Answered = tuple[PendingPull, PullResult, bytes]  # and its encoded reply


class LongPolls:
    """Pending pulls of the backend."""

    def __init__(
        self, store: MessageStore, pending_pulls: PendingPulls, resume: Callable[[PendingPull], None]
    ) -> None:
        self._store = store
        self._resume = resume
        self._pending_pulls = pending_pulls

    def hold(
        self, peer: Peer, authorization: Authorization, queue_id: int, offset: int, waits: PendingFrame
    ) -> None:
        """Keep a pull pending for a message at its offset; answer it immediately when the table is full or the broker
        stops."""
        held, topic = self._pending_pulls, authorization.topic
        frame, hold_ms, code = waits
        pull = PendingPull(
            peer,
            frame,
            authorization.group,
            topic,
            queue_id,
            offset,
            authorization.tag_codes,
            authorization.accept,
            self._resume,
            code,
        )
        if held.is_full_for(peer):
            pull.resume(pull)
            return
        held.hold(pull, hold_ms / 1000)
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return
        for at in range(offset, queue.readable_max):
            entry = queue.entry(at)
            if entry is not None and pull.is_held:
                held.show(pull, at + 1, entry[2])


def answer_released(burst: PullBurst, pulls: list[PendingPull]) -> tuple[list[Answered], list[PendingPull]]:
    """Serve released pulls in bursts; return those that found messages, and those for PullCalls.resume.

    From the first failure on all pulls go to PullCalls.resume; the earlier ones are counted, and so answered.
    """
    answered: list[Answered] = []
    others = [pull for pull in pulls if len(pull.frame) > FRAME_BYTES_MAX]
    if others:
        pulls = [pull for pull in pulls if len(pull.frame) <= FRAME_BYTES_MAX]
    data = b"".join([pull.frame for pull in pulls])
    position = served = 0
    while served < len(pulls):
        try:
            result = burst(data, position)
        except Exception as error:
            _failed(error, pulls[served:])
            others += pulls[served:]
            break
        replies, position, results = result.replies, result.used, result.pulled
        reply_at = 0
        for pull, found in zip(pulls[served:], results, strict=False):
            if found.held is None:
                reply_end = reply_at + 4 + int.from_bytes(replies[reply_at : reply_at + 4], "big")
                answered.append((pull, found, replies[reply_at:reply_end]))
                reply_at = reply_end
            else:
                others.append(pull)
        served += len(results)
        if result.fault is not None:
            _failed(result.fault, pulls[served:])
            others += pulls[served:]
            break
        if result.is_slow:
            others.append(pulls[served])
            position += len(pulls[served].frame)
            served += 1
        elif not results:
            others += pulls[served:]  # the fast path was closed
            break
    return answered, others


def _failed(fault: BaseException, pulls: list[PendingPull]) -> None:
    _LOG.error(
        "the fast path could not answer %s that were pending", plural(len(pulls), "pull"), exc_info=fault
    )
