"""Long polls on the fast path: pulls that found nothing are held, and answered when a message has released them.

A backend reports a pull that has to wait as a PullResult with a PendingFrame; `LongPolls.hold` holds it as PullCalls does, where
both kinds wait side by side (pull/pending_pulls.py). A released pull is the same frame once more: many of them are one burst,
whose replies are cut apart again. What is not ordinary any more is for PullCalls.resume.

What always holds: the offset in a pull's header is committed when the pull comes in, never when it is released. A message
of the burst in which the pull came in wakes it, too, although its arrival was announced before the pull was held.
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

FRAME_BYTES_MAX = 64 << 10  # of one pull in a burst of released ones; a larger one is for PullCalls

PullBurst = Callable[[bytes, int], BurstResult]  # as Backend.burst, of (data, position)
Answered = tuple[PendingPull, PullResult, bytes]  # and its encoded reply


class LongPolls:
    """Holds what the backend leaves waiting."""

    def __init__(
        self, store: MessageStore, pending_pulls: PendingPulls, resume: Callable[[PendingPull], None]
    ) -> None:
        self._store = store
        self._resume = resume
        self._pending_pulls = pending_pulls

    def hold(
        self, peer: Peer, authorization: Authorization, queue_id: int, offset: int, waits: PendingFrame
    ) -> None:
        """Hold a pull for a message at its offset; with no space for it, or while the broker stops, answer it immediately."""
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
    """Serve released pulls in bursts: those that found messages, and those that are for PullCalls.resume.

    From the first that fails on they are all for PullCalls.resume; those before it are counted, and so are answered.
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
    _LOG.error("the fast path could not answer %s that waited", plural(len(pulls), "pull"), exc_info=fault)
