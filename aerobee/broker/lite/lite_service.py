"""Serves lite topics, independent of the protocol: subscriptions of clients, and pops of what they subscribe.

A pop reads the LMQs that are ready for its client (subscriptions.py) in order: while a block of a lite topic is with a client of the
group, the lite topic delivers nothing else to it (pop/order_info.py). A group without an offset of a lite topic begins with the
first message behind its subscription; RocketMQ 5.5.0 loses those before its first pop.

Acknowledgements go to AckService under the LMQ's name. Source: PopLiteMessageProcessor, LiteSubscriptionCtlProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.lite.lite_group import LiteGroup, lite_group
from aerobee.broker.lite.subscriptions import LiteSubscriptions, Subscriber
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import INIT_FROM_MAX, ColdData, PopEngine, PopWant, Taken
from aerobee.broker.pop.pending_pops import PendingPop, PendingPops
from aerobee.broker.pop.pop_service import (
    LATE_MS,
    PopCall,
    PopOutcome,
    PopRequest,
    PopStatus,
    check_invisible_time,
)
from aerobee.broker.pop.request_age import RequestAge
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.clock import Clock, Timer, wall_wait_s
from aerobee.errors import AerobeeError
from aerobee.lite_topic import LITE_PREFIX, lite_queue, lite_topic_fault, split_lite_queue
from aerobee.remoting.body.pop_handle import ORDERED_REVIVE_QUEUE
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer
from aerobee.remoting.protocol import ANY_QUEUE, HOLD_MS_MAX, POP_COUNT_MAX
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.queue_table import LMQ_QUEUE_ID

SUBSCRIPTIONS_MAX = 100_000  # maxLiteSubscriptionCount
SUBSCRIBERS_MAX = 100_000  # clients of all groups
QUOTA_SLACK = 300  # lite topics of one request above the client's quota
WILDCARD_REFUSED = "subscribe lite operation is not supported for this group"
SILENT_MS = 180_000  # liteSubscriptionCheckTimeoutMills
OFFERED_COUNT = 200  # subscriptions that offer_again() looks at in one event loop iteration


class SyncAction(Enum):
    """How a synchronization changes a client's set of lite topics."""

    PARTIAL_ADD = auto()
    PARTIAL_REMOVE = auto()
    COMPLETE_ADD = auto()
    COMPLETE_REMOVE = auto()


class OffsetKind(Enum):
    """Where a group begins in newly subscribed lite topics. LAST: where it is."""

    LAST = auto()
    MIN = auto()
    MAX = auto()
    OFFSET = auto()
    TAIL_N = auto()  # N messages before the group's offset
    TIMESTAMP = auto()  # ms; RocketMQ 5.5.0 ignores it


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """`value` is the offset, the number of messages, or the time in ms."""

    kind: OffsetKind
    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteSync:
    """A client's change of its lite topics."""

    action: SyncAction
    client_id: str
    group: str
    topic: str
    lite_topics: tuple[str, ...] = ()
    offset: OffsetOption | None = None


@dataclass(slots=True)
class _Asked:
    """A pop that waits, and its client."""

    request: PopRequest
    client_id: str


class LiteService:
    """The lite topics of one broker. Belongs to its event loop."""

    def __init__(
        self,
        *,
        engine: PopEngine,
        store: MessageStore,
        offsets: ConsumerOffsets,
        groups: GroupTable,
        checks: PopChecks,
        waiting: PendingPops,
        stats: BrokerStats,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        unserved: UnservedKinds,
        pop_feature: str,
        is_enabled: bool,
    ) -> None:
        """`waiting` holds pops that found nothing, and is this service's alone. `is_enabled`: this broker has LMQs."""
        self._engine = engine
        self._store = store
        self._offsets = offsets
        self._groups = groups
        self._checks = checks
        self._waiting = waiting
        self._stats = stats
        self._clock = clock
        self._spawn = spawn
        self._unserved, self._pop_feature = unserved, pop_feature
        self.is_enabled = is_enabled
        self.subscriptions = LiteSubscriptions()
        self._ages = RequestAge()
        self._free: dict[tuple[str, str], tuple[int, Timer]] = {}
        self._may_hold = True
        self._listens = False

    # --- groups

    def group(self, name: str) -> LiteGroup | None:
        """The lite settings of a group; None for a group that consumes no lite topics, or does not exist."""
        return lite_group(self._groups.get(name))

    def require_group(self, name: str, topic: str) -> LiteGroup:
        """The settings of a lite group of this topic. Raises Refused."""
        if not self.is_enabled:
            text = "lite topics need the settings enableLmq and enableMultiDispatch, which this broker does not have"
            raise Refused(Reason.LITE_DISABLED, text)
        if self._groups.get(name) is None:
            raise Refused(Reason.LITE_GROUP_UNKNOWN, f"group not found: {name}")
        found = self.group(name)
        bound = "null" if found is None else found.topic
        if found is None or bound != topic:
            text = f"lite group {name} is expected to bind topic {bound}, but actual is {topic}"
            raise Refused(Reason.LITE_TOPIC_NOT_BOUND, text)
        return found

    # --- subscriptions

    def synchronize(self, asked: LiteSync, peer: Peer) -> None:
        """Change a client's lite topics; `peer` receives notices that it lost one. Raises Refused, and nothing has changed then."""
        if asked.action is SyncAction.PARTIAL_ADD:
            for name in asked.lite_topics:
                if fault := lite_topic_fault(name):
                    raise Refused(Reason.LITE_TOPIC_ILLEGAL, fault)
        self._checks.require_master()
        group = self.require_group(asked.group, asked.topic)
        if len(asked.lite_topics) > group.quota + QUOTA_SLACK:
            raise self._over_quota(group)
        self._checks.may_consume(asked.group, asked.topic, ANY_QUEUE)
        # A client may repeat names of earlier releases' rules: what no lite topic can be called is never sent to.
        lmqs = [lite_queue(asked.topic, name) for name in asked.lite_topics if not lite_topic_fault(name)]
        if asked.action is SyncAction.COMPLETE_REMOVE:
            self.leave(asked.group, asked.client_id)
            return
        if asked.action is SyncAction.PARTIAL_REMOVE:
            self._remove(group, asked.client_id, lmqs)
            return
        self._add(group, asked, lmqs, peer)

    def leave(self, group: str, client_id: str) -> None:
        """A client ends: it subscribes nothing any more."""
        subscriber = self.subscriptions.get(group, client_id)
        if subscriber is not None:
            lmqs = list(subscriber.ready)
            self.subscriptions.leave(subscriber)
            for lmq in lmqs:  # others of the group take what it would have taken
                self.on_free(lmq, group)

    def _add(self, group: LiteGroup, asked: LiteSync, lmqs: list[str], peer: Peer) -> None:
        table = self.subscriptions
        is_complete = asked.action is SyncAction.COMPLETE_ADD
        if group.is_wildcard and not is_complete:
            raise Refused(Reason.LITE_TOPIC_NOT_BOUND, WILDCARD_REFUSED)
        known = table.get(group.name, asked.client_id)
        had: Iterable[str] = () if known is None else known.lmqs
        new = [lmq for lmq in dict.fromkeys(lmqs) if lmq not in had]
        if table.count + len(new) > SUBSCRIPTIONS_MAX:
            text = f"lite subscription quota exceeded {SUBSCRIPTIONS_MAX}"
            raise Refused(Reason.LITE_QUOTA, text)
        if known is None and len(table) >= SUBSCRIBERS_MAX:  # those that subscribe nothing yet count, too
            text = f"lite subscription quota exceeded: {SUBSCRIBERS_MAX} clients subscribe"
            raise Refused(Reason.LITE_QUOTA, text)
        if known is not None and not is_complete and len(known.lmqs) + len(new) > group.quota + QUOTA_SLACK:
            raise self._over_quota(group)
        subscriber = table.enter(group.name, asked.client_id, group.topic, peer, self._clock.now_ms())
        self._listen()
        if group.is_wildcard:
            if table.add_all(subscriber):
                for lmq in self._existing(group.topic):
                    self._offer(subscriber, lmq)
            return
        if is_complete:
            wanted = set(lmqs)
            for lmq in [each for each in subscriber.lmqs if each not in wanted]:
                table.remove(subscriber, lmq)
        for lmq in dict.fromkeys(lmqs):
            is_new = table.add(subscriber, lmq)
            if group.is_exclusive and is_new:
                self._exclude(group, subscriber, lmq)
            if asked.offset is not None and not is_complete:
                self._set_offset(group.name, lmq, asked.offset)
            if is_new or asked.offset is not None:
                self._offer(subscriber, lmq)

    def _remove(self, group: LiteGroup, client_id: str, lmqs: list[str]) -> None:
        subscriber = self.subscriptions.get(group.name, client_id)
        if subscriber is None:
            return
        for lmq in lmqs:
            if self.subscriptions.remove(subscriber, lmq):
                if group.resets_on_unsubscribe:
                    self._set_offset(group.name, lmq, OffsetOption(OffsetKind.MIN))
                self.on_free(lmq, group.name)

    def _exclude(self, group: LiteGroup, subscriber: Subscriber, lmq: str) -> None:
        """The newest subscriber of an exclusive group takes the lite topic; the earlier ones are notified."""
        found = split_lite_queue(lmq)
        for other in list(self.subscriptions.of_group(group.name, lmq, group.topic)):
            if other is subscriber or found is None:
                continue
            self.subscriptions.remove(other, lmq)
            if group.resets_on_exclusion:
                self._set_offset(group.name, lmq, OffsetOption(OffsetKind.MIN))
            fields = {"liteTopic": found[1], "consumerGroup": group.name, "clientId": other.client_id}
            if other.peer.is_open:
                other.peer.invoke_oneway(RemotingCommand(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, fields))

    def _set_offset(self, group: str, lmq: str, option: OffsetOption) -> None:
        store = self._store
        low, high = store.min_offset(lmq, LMQ_QUEUE_ID), store.max_offset(lmq, LMQ_QUEUE_ID)
        now = self._offsets.query(group, lmq, LMQ_QUEUE_ID)
        if option.kind is OffsetKind.LAST or (option.kind is OffsetKind.TAIL_N and now is None):
            return
        if option.kind is OffsetKind.MIN:
            target = low
        elif option.kind is OffsetKind.MAX:
            target = high
        elif option.kind is OffsetKind.OFFSET:
            target = option.value
        elif option.kind is OffsetKind.TAIL_N:
            target = (now or 0) - option.value
        else:
            target = store.offset_by_time(lmq, LMQ_QUEUE_ID, option.value)
        if not high:
            return  # it begins with its first message
        self._engine.orders.clear(lmq, group, LMQ_QUEUE_ID)
        self._offsets.commit(group, lmq, LMQ_QUEUE_ID, min(max(low, target), high))

    def _offer(self, subscriber: Subscriber, lmq: str) -> None:
        """Make an LMQ ready for a new subscriber where it has messages for the group, whose offset is known from now on."""
        high = self._store.max_offset(lmq, LMQ_QUEUE_ID)
        if not high:
            return
        want = self._want(subscriber.group, lmq)
        if self._engine.position(want, lmq, LMQ_QUEUE_ID) < high:
            subscriber.ready[lmq] = None
            self._waiting.wake(subscriber.topic, _key(subscriber.group, subscriber.client_id))

    def offer_again(self, group: str, client_id: str = "") -> Iterator[None]:
        """Look for messages for each subscription of a group, or of one client; yields between slices of OFFERED_COUNT."""
        lmqs_seen = 0
        for subscriber in list(self.subscriptions.everything()):
            if subscriber.group != group or client_id not in ("", subscriber.client_id):
                continue
            names = self._existing(subscriber.topic) if subscriber.is_wildcard else list(subscriber.lmqs)
            for lmq in names:
                lmqs_seen += 1
                if lmqs_seen % OFFERED_COUNT == 0:
                    yield
                # It may have left, or unsubscribed, while others were served.
                if self.subscriptions.get(group, subscriber.client_id) is not subscriber:
                    break
                if subscriber.is_wildcard or lmq in subscriber.lmqs:
                    self._offer(subscriber, lmq)

    def _existing(self, topic: str) -> list[str]:
        prefix = lite_queue(topic, "")
        return [name for name, _ in self._store.queues if name.startswith(prefix)]

    def _over_quota(self, group: LiteGroup) -> Refused:
        return Refused(Reason.LITE_QUOTA, f"lite subscription quota exceeded: {group.quota}")

    # --- events

    def _listen(self) -> None:
        """Listen to new messages from the first subscription on: others do not pay for it."""
        if not self._listens:
            self._listens = True
            self._store.on_arrival(self._on_appended)

    def _on_appended(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        if not topic.startswith(LITE_PREFIX):
            return
        found = split_lite_queue(topic)
        if found is None:
            return
        for group, subscribers in list(self.subscriptions.of(topic, found[0])):
            if self._offsets.query(group, topic, LMQ_QUEUE_ID) is None:
                # It was subscribed before it existed: a known offset, whenever the group pops.
                low = self._store.min_offset(topic, LMQ_QUEUE_ID)
                self._offsets.commit(group, topic, LMQ_QUEUE_ID, low)
            for subscriber in subscribers:
                subscriber.ready[topic] = None
            self._wake_one(subscribers)

    def on_free(self, lmq: str, group: str) -> None:
        """A lite topic can deliver to a group again: it was acknowledged, postponed, or its offset was reset."""
        found = split_lite_queue(lmq)
        subscribers = {} if found is None else self.subscriptions.of_group(group, lmq, found[0])
        for subscriber in subscribers:
            subscriber.ready[lmq] = None
        self._wake_one(subscribers)

    def _wake_one(self, subscribers: dict[Subscriber, None]) -> None:
        """Serve one waiting pop. Its client is the last to be chosen next time."""
        for subscriber in subscribers:
            key = _key(subscriber.group, subscriber.client_id)
            if self._waiting.waiting(subscriber.topic, key):
                del subscribers[subscriber]
                subscribers[subscriber] = None
                self._waiting.wake(subscriber.topic, key)
                return

    def _wake_at(self, topic: str, key: str, time_ms: int) -> None:
        known = self._free.get((topic, key))
        if known is not None:
            if known[0] <= time_ms:
                return
            known[1].cancel()

        def wake() -> None:
            self._free.pop((topic, key), None)
            self._waiting.wake(topic, key)

        timer = self._clock.call_later(max(0.001, wall_wait_s(self._clock, time_ms)), wake)
        self._free[(topic, key)] = (time_ms, timer)

    # --- pops

    def pop(
        self, asked: PopRequest, client_id: str, call: PopCall
    ) -> PopOutcome | Coroutine[Any, Any, PopOutcome | None] | None:
        """As PopService.pop(), of the lite topics that this client subscribes. `taken.topics` are their LMQs."""
        self._check(asked)
        now_ms = self._clock.now_ms()
        age_ms = self._ages.age_ms(call.caller, asked.born_ms, now_ms, late_ms=asked.poll_ms + LATE_MS)
        if age_ms > asked.poll_ms + LATE_MS:
            text = f"the pop was under way for {age_ms} ms, its pollTime is {asked.poll_ms} ms"
            return PopOutcome(PopStatus.TOO_LATE, self._whole(asked), Taken(now_ms, -1), text)
        until_ms = now_ms + min(asked.poll_ms - age_ms, HOLD_MS_MAX)
        waits = _Asked(asked, client_id)
        try:
            return self._serve(waits, call, until_ms)
        except ColdData:
            return self._serve_cold(waits, call, until_ms)

    def drop(self, call: PopCall) -> bool:
        """The caller no longer waits for a call of pop(). False for a call that is not pending."""
        return self._waiting.drop(call)

    def _check(self, asked: PopRequest) -> None:
        self._checks.may_consume(asked.group, asked.topic, ANY_QUEUE)
        self.require_group(asked.group, asked.topic)
        if not 0 < asked.count_max <= POP_COUNT_MAX:
            text = f"the pop names {asked.count_max} messages, 1 to {POP_COUNT_MAX} are possible"
            raise Refused(Reason.COUNT_ILLEGAL, text)
        check_invisible_time(asked.invisible_ms)

    def _serve(self, waits: _Asked, call: PopCall, until_ms: int) -> PopOutcome | None:
        """Raises ColdData, and nothing was handed out then; Refused, StoreError."""
        self._checks.require_master()
        if (refusal := self._unserved.refusal(self._pop_feature)) is not None:
            raise refusal
        asked = waits.request
        want = self._whole(asked)
        taken = self._take(asked, waits.client_id)
        if taken.count:
            self._stats.group_get(asked.group, asked.topic, taken.count, sum(taken.sizes))
            return PopOutcome(PopStatus.FOUND, want, taken, "FOUND")
        self._stats.get_miss()
        if until_ms <= taken.pop_time or not self._may_hold or not asked.may_wait:
            return PopOutcome(PopStatus.NOTHING, want, taken, taken.status.name)
        key = _key(asked.group, waits.client_id)
        if taken.blocked_until:
            self._wake_at(asked.topic, key, taken.blocked_until)
        pending = PendingPop(call, waits, asked.topic, key, ANY_QUEUE, None, until_ms, self._resume)
        if self._waiting.hold(pending, (until_ms - taken.pop_time) / 1000, ()):
            return None
        return PopOutcome(PopStatus.TOO_MANY_WAIT, want, taken, "too many pops wait already: ask again later")

    def _take(self, asked: PopRequest, client_id: str) -> Taken:
        taken = Taken(self._clock.now_ms(), ORDERED_REVIVE_QUEUE)
        subscriber = self.subscriptions.get(asked.group, client_id)
        for lmq in () if subscriber is None else tuple(subscriber.ready):
            assert subscriber is not None
            if taken.count >= asked.count_max:
                break
            want = self._want(asked.group, lmq, asked, asked.count_max - taken.count)
            offset = self._engine.position(want, lmq, LMQ_QUEUE_ID)
            if self._store.max_offset(lmq, LMQ_QUEUE_ID) <= offset:
                del subscriber.ready[lmq]
                continue
            if self._engine.orders.blocked_until(
                lmq, asked.group, LMQ_QUEUE_ID, asked.attempt_id, taken.pop_time
            ) == 0 and self._store.is_cold(lmq, LMQ_QUEUE_ID, offset):
                if taken.count:
                    break  # what was found leaves now; the next pop begins with the cold one
                raise ColdData
            part = self._engine.take(want, taken.pop_time)
            _merge(taken, part)
            if part.count:  # the others have their turn first next time
                del subscriber.ready[lmq]
                subscriber.ready[lmq] = None
        return taken

    def _want(
        self, group: str, lmq: str, asked: PopRequest | None = None, count_max: int = POP_COUNT_MAX
    ) -> PopWant:
        return PopWant(
            topic=lmq,
            group=group,
            queue_id=LMQ_QUEUE_ID,
            queue_count=1,
            count_max=count_max,
            invisible_ms=0 if asked is None else asked.invisible_ms,
            init_mode=INIT_FROM_MAX,
            ordered=True,
            attempt_id="" if asked is None else asked.attempt_id,
        )

    def _whole(self, asked: PopRequest) -> PopWant:
        """The pop as its outcome names it: of the topic."""
        want = self._want(asked.group, asked.topic, asked, asked.count_max)
        want.queue_id = ANY_QUEUE
        return want

    def _resume(self, pending: PendingPop[_Asked, PopCall], timed_out: bool) -> None:
        until_ms = 0 if timed_out else pending.until_ms
        call = pending.call
        try:
            self._check(pending.asked.request)
            outcome = self._serve(pending.asked, call, until_ms)
        except ColdData:
            self._spawn(self._resume_cold(pending.asked, call, until_ms))
            return
        except AerobeeError as error:
            call.refuse(error)
            return
        if outcome is not None:
            call.deliver(outcome)

    async def _resume_cold(self, waits: _Asked, call: PopCall, until_ms: int) -> None:
        try:
            outcome = await self._serve_cold(waits, call, until_ms)
        except AerobeeError as error:
            call.refuse(error)
            return
        if outcome is not None and call.is_open:
            call.deliver(outcome)

    async def _serve_cold(self, waits: _Asked, call: PopCall, until_ms: int) -> PopOutcome | None:
        """Load what the pop reads into memory first. Raises as _serve()."""
        asked = waits.request
        while True:
            subscriber = self.subscriptions.get(asked.group, waits.client_id)
            for lmq in () if subscriber is None else tuple(subscriber.ready):
                offset = self._engine.position(self._want(asked.group, lmq), lmq, LMQ_QUEUE_ID)
                if self._store.is_cold(lmq, LMQ_QUEUE_ID, offset):
                    await self._store.get_messages_cold(lmq, LMQ_QUEUE_ID, offset, count_max=asked.count_max)
                    break
            if not call.is_open:
                return None
            self._check(asked)
            try:
                return self._serve(waits, call, until_ms)
            except ColdData:
                continue

    # --- life

    def forget_silent(self) -> None:
        """Remove clients that have not synchronized for SILENT_MS."""
        for subscriber in self.subscriptions.silent(self._clock.now_ms() - SILENT_MS):
            self.leave(subscriber.group, subscriber.client_id)

    def release_all(self) -> None:
        """The broker stops, or is no longer master: answer pending pops."""
        self._may_hold = False
        self._waiting.release_all()

    def begin(self) -> None:
        """This broker serves lite topics from now on."""
        self._may_hold = True

    def resign(self) -> None:
        """Another broker is master: clients synchronize with it."""
        self.release_all()
        self.subscriptions.clear()
        self.stop()

    def stop(self) -> None:
        """Cancel timers."""
        for _, timer in self._free.values():
            timer.cancel()
        self._free.clear()


def _key(group: str, client_id: str) -> str:
    """Pops wait for each client apart, because each has other lite topics."""
    return f"{group}\n{client_id}"


def _merge(taken: Taken, part: Taken) -> None:
    taken.shares += part.shares
    taken.topics += part.topics
    taken.sizes += part.sizes
    taken.bodies += part.bodies
    taken.consumed += part.consumed
    taken.count += part.count
    taken.rest += part.rest
    taken.status = part.status
    if part.blocked_until:
        taken.blocked_until = min(part.blocked_until, taken.blocked_until or part.blocked_until)
