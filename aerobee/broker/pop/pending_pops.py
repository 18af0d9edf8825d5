"""Pending pops and notifications (PopLongPollingService).

A pending call is one object, found by (topic, group), for any queue of the topic or for one. A readable message wakes
one pending call of each group, because a second pop would find no message; a message in a group's retry topic wakes a
call of that group. Calls are woken in the order of their arrival. The releases of one event loop iteration run together
after it, so that a burst of sends is answered with one full pop.

With access control, a call that its user may no longer make is refused and receives no message (pending_access.py).

Invariants: each call is released exactly once (message, deadline, close of its connection, shutdown). A call whose
filter refuses the message stays. At most WAITING_MAX calls are pending, and WAITING_OF_KEY_MAX per group and topic;
further ones are answered with POLLING_FULL (209).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from aerobee.broker.admission.pending_access import PendingAccess, RefusalOf
from aerobee.broker.pop.engine import PopWant
from aerobee.broker.state.bounds import Bounds
from aerobee.caller import Caller
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError, RemoteError
from aerobee.ordered_set import OrderedSet
from aerobee.remoting.protocol import ANY_QUEUE

WAITING_MAX = 100_000  # maxPopPollingSize
WAITING_OF_KEY_MAX = 1_024  # popPollingSize

Key = tuple[str, str]  # topic, group


class QueueWatch(Protocol):
    """Source of arrival notices of queues (PendingPulls)."""

    def watch(self, topic: str, queue_id: int) -> None: ...

    def unwatch(self, topic: str, queue_id: int) -> None: ...


class HeldCall(Protocol):
    """One pending call of a service, of any protocol. It receives the deferred answer."""

    @property
    def caller(self) -> Caller:
        """Who made it."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether a late answer can still arrive."""
        ...

    def refusal_by(self, refusal_of: RefusalOf) -> RemoteError | None:
        """As pending_access.Held."""
        ...

    def refuse(self, error: AerobeeError) -> None:
        """Answer with an error of the service, or a refusal of the gate."""
        ...


A = TypeVar("A")
C = TypeVar("C", bound=HeldCall)


class PendingPop(Generic[A, C]):
    """One pending call and the request `asked`, which may wait until `until_ms`. `resume(this, timed_out)` serves it again. `version`: as
    Held."""

    __slots__ = (
        "asked",
        "call",
        "group",
        "queue_id",
        "resume",
        "tag_codes",
        "topic",
        "until_ms",
        "version",
        "waits",
    )  # fmt: skip

    def __init__(
        self,
        call: C,
        asked: A,
        topic: str,
        group: str,
        queue_id: int,
        tag_codes: frozenset[int] | None,
        until_ms: int,
        resume: Callable[[PendingPop[A, C], bool], None],
    ) -> None:
        self.call = call
        self.asked = asked
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.tag_codes = tag_codes
        self.until_ms = until_ms
        self.resume = resume
        self.version = 0
        self.waits = False

    @property
    def peer(self) -> Caller:
        """As Held."""
        return self.call.caller

    def refusal_by(self, refusal_of: RefusalOf) -> RemoteError | None:
        """As Held."""
        return self.call.refusal_by(refusal_of)

    def refuse(self, refusal: RemoteError) -> None:
        """As Held."""
        self.call.refuse(refusal)


AnyPending = PendingPop[Any, Any]


def queues_of(want: PopWant) -> list[tuple[str, int]]:
    """The queues whose messages a pop may receive."""
    queues = [(want.topic, queue_id) for queue_id in range(want.queue_count)]
    for topic, _, queue_count in want.retries:
        queues += [(topic, queue_id) for queue_id in range(queue_count)]
    return queues


class _GroupCalls:
    """The calls of one group at one topic."""

    __slots__ = ("calls", "key", "watched")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.watched: dict[tuple[str, int], None] = {}
        self.calls: dict[AnyPending, None] = {}


class PendingPops:
    """The pending calls. Belongs to the event loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        watch: QueueWatch,
        bounds: Bounds | None = None,
        access: PendingAccess | None = None,
    ) -> None:
        """`bounds` limit the pending calls per peer. `access`: access control is on."""
        self.access = access
        if access is not None:
            access.add(self)
        self._bounds = bounds
        self._clock = clock
        self._call_soon = call_soon
        self._watch = watch
        self._by_group: dict[Key, _GroupCalls] = {}
        self._by_queue: dict[tuple[str, int], OrderedSet[_GroupCalls]] = {}
        self._connections: dict[Caller, dict[HeldCall, AnyPending]] = {}
        self._deadlines: list[tuple[float, int, AnyPending]] = []
        self._sequence = itertools.count()
        self._timer: Timer | None = None
        self._released: list[tuple[AnyPending, bool]] = []
        self.count = 0

    def waiting(self, topic: str, group: str, queue_id: int = ANY_QUEUE) -> int:
        """Number of pending calls for this key."""
        waiting = self._by_group.get((topic, group))
        if waiting is None:
            return 0
        return sum(
            1 for call in waiting.calls if ANY_QUEUE in (queue_id, call.queue_id) or call.queue_id == queue_id
        )

    def hold(self, call: AnyPending, hold_s: float, queues: Iterable[tuple[str, int]]) -> bool:
        """Add a pending call; `queues` are those whose messages it may receive. False: too many are pending."""
        key = (call.topic, call.group)
        waiting = self._by_group.get(key)
        if self.count >= WAITING_MAX or (waiting is not None and len(waiting.calls) >= WAITING_OF_KEY_MAX):
            return False
        caller = call.call.caller
        own = len(self._connections.get(caller, ()))
        if self._bounds is not None and own >= self._bounds.limit("clientPollsMax"):
            self._bounds.reached("clientPollsMax", f"{own} pops of it wait already", caller.address)
            return False
        if waiting is None:
            waiting = self._by_group[key] = _GroupCalls(key)
        for queue in queues:
            if queue not in waiting.watched:  # a queue may have been added since the first call came
                waiting.watched[queue] = None
                self._by_queue.setdefault(queue, OrderedSet()).add(waiting)
                self._watch.watch(*queue)
        waiting.calls[call] = None
        calls = self._connections.get(caller)
        if calls is None:
            calls = self._connections[caller] = {}
            caller.on_close(self._connection_closed)
        calls[call.call] = call
        if self.access is not None:
            call.version = self.access.seen
        call.waits = True
        self.count += 1
        heapq.heappush(self._deadlines, (self._clock.monotonic() + hold_s, next(self._sequence), call))
        if self._timer is None or self._deadlines[0][2] is call:
            self._arm()
        return True

    def on_appended(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A message became readable."""
        groups = self._by_queue.get((topic, queue_id))
        if groups is not None:
            for waiting in list(groups):
                # Only the topic's own messages match calls for one queue; those of a retry topic match any
                # call.
                of_topic = waiting.key[0] == topic
                for call in waiting.calls:
                    if of_topic and call.queue_id not in (ANY_QUEUE, queue_id):
                        continue
                    if call.tag_codes is None or tags_code in call.tag_codes:
                        self._release(call, timed_out=False)
                        break

    def wake(self, topic: str, group: str, queue_id: int = ANY_QUEUE) -> None:
        """A message for a group is available: serve one of its calls."""
        waiting = self._by_group.get((topic, group))
        if waiting is not None:
            for call in waiting.calls:
                if ANY_QUEUE in (queue_id, call.queue_id) or call.queue_id == queue_id:
                    self._release(call, timed_out=False)
                    return

    def drop(self, call: HeldCall) -> bool:
        """Its caller no longer waits for this call: forget it. False for a call that is not pending here."""
        pending = self._connections.get(call.caller, {}).get(call)
        if pending is None:
            return False
        self._forget(pending)
        return True

    def everything(self) -> list[AnyPending]:
        """As PendingTable."""
        return [call for calls in self._connections.values() for call in calls.values()]

    def look_again(self, held: Sequence[AnyPending]) -> None:
        """As PendingTable."""
        if self.access is None:
            return
        refused = self.access.refusals([call for call in held if call.waits])
        for call in refused:
            if call.waits:
                self._forget(call)
        for call, refusal in refused.items():
            call.refuse(refusal)

    def release_all(self) -> None:
        """Answer all pending calls now: the broker stops."""
        for waiting in list(self._by_group.values()):
            for call in list(waiting.calls):
                self._release(call, timed_out=True)
        self._run_released()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self, call: AnyPending, *, timed_out: bool) -> None:
        self._forget(call)
        self._released.append((call, timed_out))
        if len(self._released) == 1:
            self._call_soon(self._run_released)

    def _run_released(self) -> None:
        released, self._released = self._released, []
        access = self.access
        refused = {} if access is None else access.refusals([call for call, _ in released])
        for call, refusal in refused.items():
            call.refuse(refusal)
            self._wake_all(call.topic, call.group)  # another call receives the message instead
        for call, timed_out in released:
            if call in refused:
                continue
            if not call.call.is_open:
                self.wake(call.topic, call.group)  # another call receives the message instead
                continue
            try:
                call.resume(call, timed_out)
            except Exception as error:
                call.peer.failed(error)  # the other pops are answered nevertheless

    def _wake_all(self, topic: str, group: str) -> None:
        waiting = self._by_group.get((topic, group))
        if waiting is not None:
            for call in list(waiting.calls):
                self._release(call, timed_out=False)

    def _forget(self, call: AnyPending) -> None:
        call.waits = False
        self.count -= 1
        waiting = self._by_group[(call.topic, call.group)]
        del waiting.calls[call]
        if not waiting.calls:
            del self._by_group[waiting.key]
            for queue in waiting.watched:
                self._watch.unwatch(*queue)
                groups = self._by_queue[queue]
                groups.discard(waiting)
                if not groups:
                    del self._by_queue[queue]
        calls = self._connections.get(call.peer)
        if calls is not None:
            calls.pop(call.call, None)
        # Entries of the heap whose call is gone are dropped when they come up, or here when they are the most.
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self.count:
            self._deadlines = [entry for entry in self._deadlines if entry[2].waits]
            heapq.heapify(self._deadlines)

    def _connection_closed(self, caller: Caller) -> None:
        for call in list(self._connections.pop(caller, {}).values()):
            self._forget(call)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._deadlines and not self._deadlines[0][2].waits:
            heapq.heappop(self._deadlines)
        if self._deadlines:
            delay = max(0.0, self._deadlines[0][0] - self._clock.monotonic())
            self._timer = self._clock.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._deadlines and (self._deadlines[0][0] <= now or not self._deadlines[0][2].waits):
            call = heapq.heappop(self._deadlines)[2]
            if call.waits:
                self._release(call, timed_out=True)
        self._arm()
