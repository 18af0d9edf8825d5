"""Serves pops, independent of the protocol, with typed requests and outcomes (PopMessageProcessor,
PeekMessageProcessor).

A pop that finds nothing waits for its poll time and ends as NOTHING then; what it finds meanwhile is given to its call. A born time
that is missing or 0 means now, and a client's clock may be wrong (request_age.py). An outcome with messages may be answered when the
log is safe up to `taken.end` (AckPolicy): what is handed out is never lost.

pop_calls.py is the encoder for remoting.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from aerobee.broker.fastpath.pop import NativeShare
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import INIT_FROM_MIN, ColdData, PopEngine, PopWant, Taken
from aerobee.broker.pop.pending_pops import HeldCall, PendingPop, PendingPops, queues_of
from aerobee.broker.pop.request_age import RequestAge
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.caller import Caller
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.protocol import ANY_QUEUE, HOLD_MS_MAX, INVISIBLE_MS_MAX, POP_COUNT_MAX
from aerobee.store.message_store import MessageStore

LATE_MS = (
    # a request whose poll time ended longer ago is not served, because its client no longer waits for the
    # answer
    500
)


@dataclass(slots=True, kw_only=True)
class PopRequest:
    """A consumer's pop request. Times in ms; `queue_id` ANY_QUEUE (-1): the broker chooses the queues.

    `poll_ms`: how long to wait for a message, from `born_ms` (client's clock) on. `may_wait` False: no client waits for the answer, which
    is then immediate. `expression_type` None or "": a tag expression. `attempt_id`: of an ordered pop, which repeats it to get
    the same messages.
    """

    group: str
    topic: str
    queue_id: int
    count_max: int
    invisible_ms: int
    poll_ms: int = 0
    born_ms: int = 0
    may_wait: bool = True
    init_mode: int = INIT_FROM_MIN
    expression_type: str | None = None
    expression: str | None = None
    ordered: bool = False
    attempt_id: str = ""


class PopStatus(Enum):
    """Outcome of a pop."""

    FOUND = auto()
    NOTHING = auto()  # and its wait, if any, has ended
    TOO_LATE = auto()  # its age exceeds its pollTime by more than LATE_MS: the client no longer waits
    TOO_MANY_WAIT = auto()  # it found nothing and cannot wait


@dataclass(slots=True)
class PopOutcome:
    """`want`: the pop as served. `taken`: the messages; without messages, the time and the queues of the search.
    `text`: the outcome in words, for the client.
    """

    status: PopStatus
    want: PopWant
    taken: Taken
    text: str = ""


class PopCall(HeldCall, Protocol):
    """One call of pop()."""

    def deliver(self, outcome: PopOutcome) -> None:
        """Take the outcome of a pop that has waited. Called once at most, and not after refuse()."""
        ...


class PopPlan(NamedTuple):
    """Checked parameters that equal pops share: all of PopWant except the time and the first queue."""

    asked: PopRequest
    want: PopWant  # completed for each pop
    turns: int  # queues to begin with; 0: the request names one queue
    config: BrokerConfig
    prioritized: SubscriptionGroupConfig | None  # whose pops of this topic may go by priority


class Peeked(NamedTuple):
    """Messages that a pop would deliver, as whole records back to back."""

    time_ms: int
    message_count: int
    rest: int  # messages behind them
    body: bytes


class PopService:
    """Delivers messages to consumers. A pop of hot data is a plain call; a pop of cold data a coroutine."""

    def __init__(
        self,
        *,
        engine: PopEngine,
        store: MessageStore,
        checks: PopChecks,
        waiting: PendingPops,
        stats: BrokerStats,
        live: LiveConfig,
        clock: Clock,
        pick: Callable[[int], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        when_free: Callable[[str, str, int], None],
        unserved: UnservedKinds,
        feature: str,
    ) -> None:
        """`when_free(topic, group, time ms)` has a waiting ordered pop served when its blocked queue is free. `feature`: POP's name
        in `unserved`."""
        self._engine = engine
        self._store = store
        self._checks = checks
        self._waiting = waiting
        self._stats = stats
        self._live = live
        self._clock = clock
        self._pick = pick
        self._spawn = spawn
        self._when_free = when_free
        self._unserved, self._feature = unserved, feature
        self._ages = RequestAge()
        self._resume_pending = self._resume  # one object for all that wait
        self._may_hold = True  # false while the broker stops: nothing waits any more

    def hold_no_more(self) -> None:
        """The broker stops: calls that find nothing are answered immediately."""
        self._may_hold = False

    def pop(
        self, asked: PopRequest, call: PopCall
    ) -> PopOutcome | Coroutine[Any, Any, PopOutcome | None] | None:
        """Serve a pop that just came in. None: it waits, and `call` gets the outcome.

        Raises Refused, RemoteError at a bound, StoreError when the check points cannot be written; nothing is handed out then.
        """
        plan = self.plan(asked)
        want = self.in_turn(plan, call.caller)
        now_ms = self._clock.now_ms()
        age_ms = self.age_ms(call.caller, asked.born_ms, now_ms, asked.poll_ms)
        if age_ms > asked.poll_ms + LATE_MS:
            text = f"the pop was under way for {age_ms} ms, its pollTime is {asked.poll_ms} ms"
            return PopOutcome(PopStatus.TOO_LATE, want, Taken(self._clock.now_ms(), -1), text)
        until_ms = now_ms + min(asked.poll_ms - age_ms, HOLD_MS_MAX)
        if want.ordered and self._cold_reads(want):
            return self._pop_cold(asked, call, want, until_ms, self._access_version())
        try:
            return self._serve(asked, call, want, until_ms=until_ms, is_cold=self._is_cold(want))
        except ColdData:
            return self._pop_cold(asked, call, want, until_ms, self._access_version())

    def drop(self, call: PopCall) -> bool:
        """The caller no longer waits for a call of pop(). False for a call that is not pending: it may just be given messages."""
        return self._waiting.drop(call)

    def peek(self, asked: PopRequest, caller: Caller) -> Peeked:
        """Show what a pop would hand out, without handing it out. Raises Refused."""
        want = self.in_turn(self.plan(asked), caller)
        bodies: list[bytes] = []
        count = rest = 0
        for topic, queue_id, _ in self._engine.sources(want):
            offset = self._engine.position(want, topic, queue_id, keep=False)
            if count >= want.count_max or self._store.max_offset(topic, queue_id) <= offset:
                continue
            result = self._store.get_messages(topic, queue_id, offset, count_max=want.count_max - count)
            count += result.count
            rest += max(0, result.max_offset - result.next_offset)
            bodies.append(result.body)
        return Peeked(self._clock.now_ms(), count, rest, b"".join(bodies))

    # --- steps, which the fast path takes one by one

    def plan(self, asked: PopRequest) -> PopPlan:
        """Check everything that a request says. Raises Refused, RemoteError at a bound."""
        grant = self._checks.grant(asked.group, asked.topic, asked.queue_id)
        topic = grant.topic
        if not 0 < asked.count_max <= POP_COUNT_MAX:
            raise Refused(
                Reason.COUNT_ILLEGAL,
                f"the broker[{self._live.value.broker_name}] pop message's num is {asked.count_max}: 1 to {POP_COUNT_MAX} are "
                "possible (maxMsgNums)",
            )
        check_invisible_time(asked.invisible_ms)
        tag_codes, accept = self._checks.filter(asked.topic, asked.expression_type, asked.expression)
        config = self._live.value
        want = PopWant(
            topic=asked.topic,
            group=asked.group,
            queue_id=max(ANY_QUEUE, asked.queue_id),
            queue_count=topic.read_queue_nums,
            count_max=asked.count_max,
            invisible_ms=asked.invisible_ms,
            init_mode=asked.init_mode,
            young_from_zero=config.init_pop_offset_by_check_msg_in_mem,
            ordered=asked.ordered,
            attempt_id=asked.attempt_id,
            tag_codes=tag_codes,
            accept=accept,
            retries=() if asked.ordered else self._checks.with_queues(grant.retries),
        )
        return PopPlan(
            asked,
            want,
            0 if asked.queue_id >= 0 else max(1, topic.read_queue_nums),
            config,
            grant.group if grant.has_priorities and not asked.ordered else None,
        )

    def in_turn(self, plan: PopPlan, caller: Caller) -> PopWant:
        """Complete the plan's pop for this caller and time: its first queue, and whether it reads retry topics
        first.
        """
        want, config, pick = plan.want, plan.config, self._pick
        by_priority = plan.prioritized is not None and self._heeds_priority(plan.prioritized)
        if want.retries:
            retry_percent = (
                config.pop_from_retry_probability_for_priority
                if by_priority
                else config.pop_from_retry_probability
            )
            want.retry_first = pick(100) < retry_percent
        want.highest_first = by_priority and config.priority_order_asc
        want.start = pick(plan.turns) if plan.turns and not by_priority else 0
        want.consumer = caller.address
        return want

    def _heeds_priority(self, group: SubscriptionGroupConfig) -> bool:
        """Whether a pop of a PRIORITY topic takes higher priorities first: in priority.factor of 100 cases."""
        factor = group.attributes.get("priority.factor", "100")
        return self._pick(100) < (int(factor) if factor.isdigit() else 100)

    def age_ms(self, caller: Caller, born_ms: int, now_ms: int, poll_ms: int) -> int:
        """How long a pop was under way. More than `poll_ms` + LATE_MS: it is not served."""
        return self._ages.age_ms(caller, born_ms, now_ms, late_ms=poll_ms + LATE_MS)

    def count(self, want: PopWant, taken: Taken) -> None:
        """Count the delivered messages, and wake pending pops for the remaining ones."""
        for topic, share, size in zip(taken.topics, taken.shares, taken.sizes, strict=True):
            self._stats.group_get(want.group, topic, len(share.offsets), size)
        self._wake_for(want, taken.rest)

    def count_natively(self, want: PopWant, shares: Iterable[NativeShare], rest: int) -> None:
        """count() of PopEngine.take_natively()."""
        for topic, _, _, offsets, _, size in shares:
            self._stats.group_get(want.group, topic, len(offsets), size)
        self._wake_for(want, rest)

    def _wake_for(self, want: PopWant, rest: int) -> None:
        if rest and self._waiting.count:
            self._waiting.wake(want.topic, want.group)  # more messages are left than this pop could take

    def nothing(
        self, asked: PopRequest, call: PopCall, want: PopWant, taken: Taken, until_ms: int
    ) -> PopOutcome | None:
        """Let a pop that found nothing wait until `until_ms` (0: not at all), or say so."""
        self._stats.get_miss()
        if until_ms <= taken.pop_time or not self._may_hold or not asked.may_wait:
            return PopOutcome(PopStatus.NOTHING, want, taken, taken.status.name)
        pending = PendingPop(
            call, asked, want.topic, want.group, want.queue_id, want.tag_codes, until_ms, self._resume_pending
        )  # fmt: skip
        if taken.blocked_until:
            self._when_free(want.topic, want.group, taken.blocked_until)
        if self._waiting.hold(pending, (until_ms - taken.pop_time) / 1000, queues_of(want)):
            return None
        return PopOutcome(PopStatus.TOO_MANY_WAIT, want, taken, "too many pops wait already: ask again later")

    def _serve(
        self,
        asked: PopRequest,
        call: PopCall,
        want: PopWant,
        *,
        until_ms: int,
        is_cold: Callable[[str, int, int], bool] | None = None,
    ) -> PopOutcome | None:
        """Serve the pop, or let it wait until `until_ms` (0: not at all). Raises ColdData when `is_cold` says so, StoreError, and
        Refused or RemoteError when the role has changed since the pop came in."""
        # A new master hands nothing out before it knows from its log what its predecessor has handed out.
        self._checks.require_master()
        if (refusal := self._unserved.refusal(self._feature)) is not None:
            raise refusal
        taken = self._engine.take(want, self._clock.now_ms(), is_cold)
        if not taken.count:
            return self.nothing(asked, call, want, taken, until_ms)
        self.count(want, taken)
        return PopOutcome(PopStatus.FOUND, want, taken)

    def _resume(self, pending: PendingPop[PopRequest, PopCall], timed_out: bool) -> None:
        """Serve a pop that waited: now when its time is up, else it may wait on."""
        asked, call = pending.asked, pending.call
        try:
            want = self.in_turn(self.plan(asked), call.caller)
            if want.ordered and self._cold_reads(want):
                raise ColdData
            until_ms = 0 if timed_out else pending.until_ms
            outcome = self._serve(asked, call, want, until_ms=until_ms, is_cold=self._is_cold(want))
        except ColdData:
            self._spawn(self._resume_cold(asked, call, want, pending.version))
            return
        except AerobeeError as error:
            call.refuse(error)
            return
        if outcome is not None:
            call.deliver(outcome)

    # --- cold data

    def _is_cold(self, want: PopWant) -> Callable[[str, int, int], bool] | None:
        """Asked while messages are taken; what an ordered pop reads is looked at before, for taking holds its block."""
        return None if want.ordered else self._store.is_cold

    def _cold_reads(self, want: PopWant) -> list[tuple[str, int, int]]:
        """Ranges that this pop would have to read from the disk, as far as it will probably read."""
        store, found = self._store, []
        left = want.count_max
        for topic, queue_id, _ in self._engine.sources(want):
            offset = self._engine.position(want, topic, queue_id)
            waiting = store.max_offset(topic, queue_id) - offset
            if waiting > 0:
                if store.is_cold(topic, queue_id, offset):
                    found.append((topic, queue_id, offset))
                left -= waiting
                if left <= 0:
                    break
        return found

    async def _warm(self, want: PopWant) -> None:
        """Load the data that this pop reads into memory, so that the pop then runs in one step."""
        for topic, queue_id, offset in self._cold_reads(want):
            await self._store.get_messages_cold(
                topic,
                queue_id,
                offset,
                count_max=want.count_max,
                tag_codes=want.tag_codes,
                accept=want.accept,
            )

    async def _pop_cold(
        self, asked: PopRequest, call: PopCall, want: PopWant, until_ms: int, version: int
    ) -> PopOutcome | None:
        await self._warm(want)
        self._look_again(call, version)
        return self._serve(asked, call, want, until_ms=until_ms)

    async def _resume_cold(self, asked: PopRequest, call: PopCall, want: PopWant, version: int) -> None:
        try:
            await self._warm(want)
            if not call.is_open:
                self._waiting.wake(want.topic, want.group)  # for another one, then
                return
            self._look_again(call, version)
            outcome = self._serve(asked, call, want, until_ms=0)
        except AerobeeError as error:
            call.refuse(error)
            return
        if outcome is not None:
            call.deliver(outcome)

    def _access_version(self) -> int:
        access = self._waiting.access
        return 0 if access is None else access.seen

    def _look_again(self, call: PopCall, version: int) -> None:
        """Users or permissions may have changed since a pop was let in. Raises RemoteError."""
        if self._waiting.access is not None:
            self._waiting.access.require_held(call.refusal_by, version)


def check_invisible_time(invisible_ms: int) -> None:
    """Raise Refused for an impossible invisible time."""
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise Refused(
            Reason.INVISIBLE_TIME_ILLEGAL,
            f"invisibleTime is {invisible_ms} ms: 0 to {INVISIBLE_MS_MAX} are possible",
        )
