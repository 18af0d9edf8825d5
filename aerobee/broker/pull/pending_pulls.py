"""Pending pulls: RocketMQ's PullRequestHoldService, without its threads.

A pending pull is one small object in two tables: by (topic, queue id), where the append that brings a message finds
it, and in a heap by deadline. It costs no separate task or timer.

Invariants: each pending pull is released exactly once (arrival, reset, deadline, close of its connection, shutdown),
and then removed from both tables. A pull whose filter refuses a new message stays pending. Releases of one pass of the
event loop run together after it, so that a burst of appends is answered with one pull reply, not with one for its first
message. Those that a message releases go to the fast path first (`answer_first`), RELEASED_AT_ONCE at a time; the
others, and every other release, are resumed by their handlers. With access control, a pull that its user may no longer
make is refused before that (pending_access.py).

Differences from RocketMQ: a hold ends at its deadline, not up to 5 s later, and a reset of the group's offset
releases its pending pulls immediately.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from aerobee.broker.admission.pending_access import PendingAccess, RefusalOf
from aerobee.broker.state.bounds import Bounds
from aerobee.clock import Clock, Timer
from aerobee.errors import RemoteError
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame
from aerobee.remoting.peer import Peer
from aerobee.remoting.request_stats import RequestStats

HELD_MAX = 200_000  # at the limit a pull is answered immediately; each takes about 1 KiB with its request
FRAMES_BYTES_MAX = 256 << 20  # the same, for the total size of their requests
# The rest waits for the next event loop iteration, so that other requests are served in between.
RELEASED_AT_ONCE = 256


class PendingPull:
    """One pending pull. `tag_codes` None and `accept` None (a test of whole records) wake it for every message.

    `frame` is the encoded request, `code` its code, `since` the start of its wait; `resume` runs it again without
    waiting. `offset`: the next offset of its queue of which it was not notified. `has_news`: a message released it.
    `signed`: the original request, if `frame` differs from it. `version`: as Held.
    """

    __slots__ = (
        "accept",
        "code",
        "frame",
        "group",
        "has_news",
        "is_held",
        "offset",
        "peer",
        "queue_id",
        "resume",
        "signed",
        "since",
        "tag_codes",
        "topic",
        "version",
    )

    def __init__(
        self,
        peer: Peer,
        frame: bytes,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        tag_codes: frozenset[int] | None,
        accept: Callable[[bytes], bool] | None,
        resume: Callable[[PendingPull], None],
        code: int,
        signed: RemotingCommand | None = None,
    ) -> None:
        self.peer = peer
        self.signed = signed
        self.version = 0
        self.code = code
        self.since: float | None = None
        self.frame = frame
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.tag_codes = tag_codes
        self.accept = accept
        self.resume = resume
        self.is_held = True
        self.has_news = False

    def asked(self) -> RemotingCommand:
        """The request as its peer signed it."""
        return self.signed or decode_frame(self.frame)

    def refusal_by(self, refusal_of: RefusalOf) -> RemoteError | None:
        """As Held."""
        return refusal_of(self.peer, self.asked())

    def refuse(self, refusal: RemoteError) -> None:
        """As Held."""
        self.peer.send(self.asked().reply(refusal.code, remark=refusal.remark, ext=refusal.ext))


class PendingPulls:
    """The pending pulls. Belongs to the event loop.

    The fast path may read `by_queue`, to skip the notice for queues without a pending pull.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        record_at: Callable[[str, int, int], bytes | None] = lambda topic, queue_id, offset: None,
        bounds: Bounds | None = None,
        requests: RequestStats | None = None,
        access: PendingAccess | None = None,
    ) -> None:
        """`record_at` returns the record of (topic, queue id, queue offset), for pulls with `accept`.

        `bounds` limit them per peer. `requests` records the duration of their wait. `access`: access control is on.
        """
        self.access = access
        if access is not None:
            access.add(self)
        self._requests = requests or RequestStats()
        self._bounds = bounds
        self._record_at = record_at
        self._clock = clock
        self._call_soon = call_soon
        self._deadlines: list[tuple[float, int, PendingPull]] = []
        self._sequence = itertools.count()
        self._timer: Timer | None = None
        self._timer_due = 0.0
        self._released: list[PendingPull] = []
        self._connections: dict[Peer, set[PendingPull]] = {}
        self.by_queue: dict[tuple[str, int], list[PendingPull]] = {}
        self._watched: Counter[tuple[str, int]] = Counter()
        self._others: list[Callable[[], None]] = []
        self.count = 0
        self.frames_bytes = 0
        self.accepting = True  # false while the broker stops: no pull stays pending
        self._answer: Callable[[list[PendingPull]], list[PendingPull]] = list

    def answer_first(self, answer: Callable[[list[PendingPull]], list[PendingPull]]) -> None:
        """Let `answer` serve the pulls that messages release; those that it returns are resumed."""
        self._answer = answer

    def watch(self, topic: str, queue_id: int) -> None:
        """Announce messages of a queue even without a pending pull, for other waiters. Counted."""
        self._watched[(topic, queue_id)] += 1
        self.by_queue.setdefault((topic, queue_id), [])

    def on_release_all(self, callback: Callable[[], None]) -> None:
        """Register a callback for the stop of the broker, when everything is answered."""
        self._others.append(callback)

    def unwatch(self, topic: str, queue_id: int) -> None:
        """The end of one watch()."""
        key = (topic, queue_id)
        self._watched[key] -= 1
        if self._watched[key] <= 0:
            del self._watched[key]
            if not self.by_queue.get(key, True):
                del self.by_queue[key]

    @property
    def is_full(self) -> bool:
        """Whether a pull must be answered immediately instead of waiting."""
        return not self.accepting or self.count >= HELD_MAX or self.frames_bytes >= FRAMES_BYTES_MAX

    def is_full_for(self, peer: Peer) -> bool:
        """The same for one peer, which may have clientPollsMax of them."""
        if self.is_full:
            return True
        pulls = self._connections.get(peer)
        if pulls is None or self._bounds is None or len(pulls) < self._bounds.limit("clientPollsMax"):
            return False
        self._bounds.reached("clientPollsMax", f"{len(pulls)} pulls of it wait already", peer.address)
        return True

    def hold(self, pull: PendingPull, hold_s: float) -> None:
        """Keep a pull pending for at most `hold_s` seconds."""
        self.by_queue.setdefault((pull.topic, pull.queue_id), []).append(pull)
        pulls = self._connections.get(pull.peer)
        if pulls is None:
            pulls = self._connections[pull.peer] = set()
            pull.peer.on_close(self._connection_closed)
        pulls.add(pull)
        self.count += 1
        self.frames_bytes += len(pull.frame)
        if self.access is not None:
            pull.version = self.access.seen
        pull.since = self._clock.monotonic()
        due = pull.since + hold_s
        heapq.heappush(self._deadlines, (due, next(self._sequence), pull))
        if self._timer is None or due < self._timer_due:
            self._arm()

    def answered(self, pull: PendingPull, response_code: int) -> None:
        """Count a pending pull that was answered."""
        if pull.since is not None:
            elapsed_s = self._clock.monotonic() - pull.since
            self._requests.add(pull.code, response_code, elapsed_s, waited=True)

    def on_appended(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A message became readable: release the pulls of its queue whose filter may match."""
        waiting = self.by_queue.get((topic, queue_id))
        if waiting is None:
            return
        record: bytes | None = None  # read once for all pulls
        stay: list[PendingPull] = []
        for pull in waiting:
            if record is None and pull.accept is not None:
                record = self._record_at(topic, queue_id, max_offset - 1)
            if not self._release_for(pull, max_offset, tags_code, record):
                stay.append(pull)
        # Together, as in _forget_all().
        if len(stay) < len(waiting):
            waiting[:] = stay
            self._drop_empty((topic, queue_id))

    def show(self, pull: PendingPull, max_offset: int, tags_code: int) -> None:
        """Notify one pull of a message that was announced before it was pending."""
        key = pull.topic, pull.queue_id
        record = self._record_at(*key, max_offset - 1) if pull.accept is not None else None
        if self._release_for(pull, max_offset, tags_code, record):
            self.by_queue[key].remove(pull)
            self._drop_empty(key)

    def _release_for(self, pull: PendingPull, max_offset: int, tags_code: int, record: bytes | None) -> bool:
        """Release the pull if its filter may match the message before `max_offset`; the caller removes it from its
        queue's list."""
        is_next = pull.offset == max_offset - 1
        pull.offset = max_offset
        if pull.tag_codes is not None and tags_code not in pull.tag_codes:
            return False
        # One notice may cover several messages (LogAppender.show_raw): then the pull itself reads all of
        # them.
        if pull.accept is not None and is_next and record is not None and not pull.accept(record):
            return False
        pull.has_news = True
        self._unhold(pull)
        self._run_soon(pull)
        return True

    def reset(self, group: str, topic: str, queue_id: int) -> None:
        """The group's offset was reset: release its pending pulls immediately."""
        waiting = self.by_queue.get((topic, queue_id), ())
        self._release_all([pull for pull in waiting if pull.group == group])

    def end(self) -> None:
        """The broker stops: answer all pending pulls now, and keep no new ones."""
        self.accepting = False
        self.release_all()

    def release_queue(self, topic: str, queue_id: int) -> None:
        """Answer the pending pulls of one queue: another broker serves it from now on."""
        self._release_all(list(self.by_queue.get((topic, queue_id), ())))

    def everything(self) -> list[PendingPull]:
        """As PendingTable."""
        return [pull for pulls in self._connections.values() for pull in pulls]

    def look_again(self, held: Sequence[PendingPull]) -> None:
        """As PendingTable."""
        if self.access is None:
            return
        refused = self.access.refusals([pull for pull in held if pull.is_held])
        self._forget_all([pull for pull in refused if pull.is_held])
        self._refuse(refused)

    def release_all(self) -> None:
        """Answer all pending pulls now."""
        for release in self._others:
            release()
        self._release_all([pull for waiting in self.by_queue.values() for pull in waiting])
        while self._released:
            self._run_released()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release_all(self, pulls: Sequence[PendingPull]) -> None:
        self._forget_all(pulls)
        for pull in pulls:
            self._run_soon(pull)

    def _run_soon(self, pull: PendingPull) -> None:
        self._released.append(pull)
        if len(self._released) == 1:
            self._call_soon(self._run_released)

    def _run_released(self) -> None:
        released, self._released = self._released[:RELEASED_AT_ONCE], self._released[RELEASED_AT_ONCE:]
        if self._released:
            self._call_soon(self._run_released)
        if self.access is not None:
            refused = self.access.refusals(released)
            if refused:
                released = [pull for pull in released if pull not in refused]
                self._refuse(refused)
        others = self._answer([pull for pull in released if pull.has_news and pull.peer.is_open])
        others += [pull for pull in released if not pull.has_news and pull.peer.is_open]
        for pull in others:
            try:
                pull.resume(pull)
            except Exception as error:
                pull.peer.failed(error)  # the other pulls are answered nevertheless

    def _refuse(self, refused: Mapping[PendingPull, RemoteError]) -> None:
        for pull, refusal in refused.items():
            pull.refuse(refusal)
            self.answered(pull, refusal.code)

    def _forget_all(self, pulls: Sequence[PendingPull]) -> None:
        for pull in pulls:
            self._unhold(pull)
        # Rebuild each queue's list once: removing thousands one by one would move the rest of the list each
        # time.
        for key in dict.fromkeys((pull.topic, pull.queue_id) for pull in pulls):
            waiting = self.by_queue[key]
            waiting[:] = [pull for pull in waiting if pull.is_held]
            self._drop_empty(key)

    def _drop_empty(self, key: tuple[str, int]) -> None:
        if not self.by_queue[key] and key not in self._watched:
            del self.by_queue[key]

    def _unhold(self, pull: PendingPull) -> None:
        """Remove it, except from its queue's list."""
        pull.is_held = False
        self.count -= 1
        self.frames_bytes -= len(pull.frame)
        pulls = self._connections.get(pull.peer)
        if pulls is not None:
            pulls.discard(pull)
        # Entries of the heap whose pull is gone are dropped when they come up, or here when they are the most.
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self.count:
            self._deadlines = [entry for entry in self._deadlines if entry[2].is_held]
            heapq.heapify(self._deadlines)

    def _connection_closed(self, peer: Peer) -> None:
        self._forget_all(list(self._connections.pop(peer, ())))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._deadlines and not self._deadlines[0][2].is_held:
            heapq.heappop(self._deadlines)
        if self._deadlines:
            self._timer_due = self._deadlines[0][0]
            delay = max(0.0, self._timer_due - self._clock.monotonic())
            self._timer = self._clock.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        expired: list[PendingPull] = []
        while self._deadlines and (self._deadlines[0][0] <= now or not self._deadlines[0][2].is_held):
            pull = heapq.heappop(self._deadlines)[2]
            if pull.is_held:
                expired.append(pull)
        self._release_all(expired)
        self._arm()
