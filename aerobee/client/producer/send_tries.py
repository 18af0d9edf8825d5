"""The tries of one send: which failures are retried, at which broker, and when the send fails. Follows
DefaultMQProducerImpl.sendDefaultImpl.

The first try of a fast-path send is made by Producer.send itself, without a coroutine; only a failed one
comes here. Beyond RocketMQ, whose three tries end within milliseconds:

    may be stored     no answer, an answer that leaves it open     a try; after 1 + retry_count_max of them the send fails
    surely not        unreachable, no master, 14, 501, 1500        no try: the other brokers immediately, then all brokers again with pauses, until the send times out
    no such queue     29, and the queue was in the route           no try: the route is read until it is another one, and the
                                                                   queue is chosen again among those that it has

So a send waits for a new master. With `retry_count_max` 0 a send neither retries nor waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from aerobee.client.base.config import ProducerConfig
from aerobee.client.base.metering import ClientMeter
from aerobee.client.base.results import SendResult, SendStatus
from aerobee.client.producer.fault_avoidance import FaultAvoidance
from aerobee.client.producer.publish_info import PublishInfo, Target
from aerobee.client.producer.publish_info_table import PublishInfoTable, target_of
from aerobee.errors import (
    AerobeeError,
    ConnectFailed,
    GoAway,
    InvalidParameter,
    MessageIllegal,
    NoMaster,
    NoNameServer,
    NoPermission,
    NotLeaderForQueue,
    RemoteError,
    RequestNotSupported,
    RouteError,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
    TransportError,
    UsageError,
)
from aerobee.message import MessageQueue
from aerobee.words import plural

log = logging.getLogger(__name__)

T = TypeVar("T")
# select(info): the queue of a send whose caller chooses by a key or a function
Select = Callable[[PublishInfo], MessageQueue]
# attempt(target, queue): one try at one broker, until the send's deadline
Attempt = Callable[[Target, MessageQueue], Coroutine[Any, Any, T]]

# Answers after which RocketMQ's client tries another broker (retryResponseCodes).
RETRIED_CODES = frozenset({17, 14, 1, 2, 16, 204, 205, 501, 1500})
BUSY_PAUSE_S = 0.25  # pause before the first retry at a busy only broker; each further pause is longer
GO_AWAY_TRIES_MAX = (
    3  # immediate repeats at brokers that shut down, or no longer lead a queue; they do not count as tries
)
# Codes after which the broker surely stored nothing. 14: a slave, a master without a lease, a store that
# refuses messages.
NOT_STORED = (ConnectFailed, ServiceNotAvailable, GoAway, NotLeaderForQueue)
_SURELY_NOT_STORED = (
    *NOT_STORED,
    RouteError,
    # Refused before the request reached the store.
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    RequestNotSupported,
    SystemBusy,
    TopicNotExist,
)
# Pause between two rounds over all brokers, none of which accepted the message: short at first, because a
# planned failover is short.
PAUSE_FIRST_S, PAUSE_MAX_S = 0.02, 0.2
# An unreachable host drops packets: the part of a send's remaining time that a connection to it, or a NameServer's request
# for another broker, may take, with a minimum.
CONNECT_TIMEOUT_S, SHARE, SHARE_S_MIN = 3.0, 1 / 3, 0.5
# A topic whose queues were reduced: how often its route is read until the NameServer has the new one, and how
# often that may happen to one send.
QUEUE_GONE_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4)
QUEUE_GONE_TRIES_MAX = 3
# Maximum number of remembered tries per send: a send that waits for minutes makes hundreds of tries, and
# thousands of sends may wait.
ATTEMPTS_MAX, TEXTS_MAX = 16, 16


def connect_s(remaining_s: float, *, is_only_try: bool = False) -> float:
    """Time-out of a try's connection in seconds: a share of the remaining time (at most 3 s, at least 0.5 s if that
    much remains), because another broker may accept the message; with `is_only_try` all of it, up to 3 s.

    The attempt itself continues (RemotingClient.connect), so a later try finds its result.
    """
    return min(CONNECT_TIMEOUT_S, remaining_s if is_only_try else _share_s(remaining_s))


def _share_s(remaining_s: float) -> float:
    return min(remaining_s, max(remaining_s * SHARE, SHARE_S_MIN))


@dataclass(frozen=True, slots=True)
class FirstTry:
    """A failed try that was made before SendTries took over. `began` is the event loop's time."""

    info: PublishInfo
    target: Target
    queue: MessageQueue
    began: float
    failure: AerobeeError


class _Send:
    """State of one send's tries."""

    def __init__(
        self,
        topic: str,
        fixed: MessageQueue | None,
        deadline: float,
        *,
        began: float,
        tries: int,
        select: Select | None = None,
    ) -> None:
        self.topic = topic
        self.fixed = fixed
        self.select = select
        self.queues_gone = 0
        self.deadline = deadline
        self.began = began
        self.tries_left = tries
        self.go_aways = 0
        self.attempt_count = 0
        self.is_asked = False  # whether any broker was tried
        self.may_be_stored = False  # whether a try may have stored the message
        self.is_retriable = False  # whether a try failed for a transient reason
        self.attempts: list[tuple[str, AerobeeError]] = []  # the first and the newest
        self.texts: Counter[str] = Counter()  # brokers in the order of their first try
        self.avoid: frozenset[str] = frozenset()  # failed brokers, to avoid if others exist
        # Brokers that surely did not store it, since the last pause.
        self._refused_by: frozenset[str] = frozenset()
        self._next_pause_s = PAUSE_FIRST_S

    def failed_at(self, where: str, failure: AerobeeError) -> None:
        """Remember one try."""
        self.attempt_count += 1
        failure.__traceback__ = None  # the traceback references the frames of the try
        self.is_asked |= not isinstance(failure, RouteError | NoNameServer)
        self.may_be_stored |= may_be_stored(failure)
        self.is_retriable |= failure.retriable
        if len(self.attempts) == ATTEMPTS_MAX:
            # Drop a try that surely stored nothing: the sender must know of every try that may have stored
            # the message.
            surely = (n for n, (_, each) in enumerate(self.attempts) if isinstance(each, _SURELY_NOT_STORED))
            del self.attempts[next((n for n in surely if n >= ATTEMPTS_MAX // 2), ATTEMPTS_MAX // 2)]
        self.attempts.append((where, failure))
        text = f"{where}: {failure}"
        if text in self.texts or len(self.texts) < TEXTS_MAX:
            self.texts[text] += 1

    def refused(self, info: PublishInfo | None, broker_name: str) -> bool:
        """A broker surely did not store it, or there is no route. Returns whether no other broker is left before a
        pause."""
        self._refused_by |= {broker_name}
        self.avoid |= self._refused_by
        return info is None or self.fixed is not None or self._refused_by.issuperset(info.targets)

    async def pause(self) -> None:
        """Wait, longer each time, and retry all brokers."""
        self._refused_by = self.avoid = frozenset()
        pause_s, self._next_pause_s = self._next_pause_s, min(2 * self._next_pause_s, PAUSE_MAX_S)
        await asyncio.sleep(max(0.0, min(pause_s, self.deadline - _now())))

    def failed(self) -> AerobeeError:
        """The error of the send after its last try."""
        if not self.is_asked:
            return self.attempts[-1][1]
        return _send_failed(self, _now() - self.began)


class SendTries:
    """Runs tries for one producer."""

    def __init__(
        self,
        routes: PublishInfoTable,
        config: ProducerConfig,
        faults: FaultAvoidance | None,
        meter: ClientMeter | None = None,
    ) -> None:
        self._meter = meter
        self._routes = routes
        self._config = config
        self._faults = faults

    async def info(self, topic: str, deadline: float) -> PublishInfo:
        """The topic's publish information; waits while the topic has no master. Raises as PublishInfoTable.info()."""
        send = _Send(topic, None, deadline, began=_now(), tries=0)
        while True:
            try:
                return self._routes.known.get(topic) or await self._routes.info(topic, deadline)
            except AerobeeError as error:
                if not self._may_come(topic, error) or _now() >= deadline:
                    raise
            await send.pause()

    async def run(
        self,
        topic: str,
        fixed: MessageQueue | None,
        deadline: float,
        attempt: Attempt[T],
        *,
        next_queue: MessageQueue | None = None,
        select: Select | None = None,
        first: FirstTry | None = None,
        began: float | None = None,
    ) -> T:
        """Run `attempt` until it succeeds, fails permanently, or the tries or the time are used up.

        `fixed`: this queue and no other; one try, unless its broker surely stored nothing. `select` chose it, and
        chooses again when the topic no longer has it. `next_queue`: queue of the first try. `first`: the first try, if
        it was already made. `began`: start of the send by the event loop's time, now by default.
        """
        if first is not None:
            began = first.began
        elif began is None:
            began = _now()
        send = _Send(
            topic, fixed, deadline, began=began, tries=1 + self._config.retry_count_max, select=select
        )
        if first is not None and not await self._other_queue(send, first.failure, first.info, first.queue):
            await self._after(send, first.failure, first.info, first.target.broker_name, first.target)
        is_first = first is None
        while True:
            if not is_first and self._meter is not None:
                self._meter.send_retried(topic)
            is_first = False
            info = target = queue = None
            broker_name = ""
            now = _now()
            try:
                info = self._routes.known.get(topic) or await self._routes.info(topic, deadline)
                queue = (
                    send.fixed
                    or next_queue
                    or info.next_queue(avoid=send.avoid, faults=self._faults, now_s=now)
                )
                next_queue = None
                broker_name = info.broker_of(queue)
                target = target_of(info, queue)
                result = await attempt(target, queue)
            except AerobeeError as error:
                failure = error
            else:
                if self._faults is not None:
                    ended = _now()
                    self._faults.record(target.broker_name, (ended - now) * 1000, ended)
                unsafe = (
                    self._not_stored_ok(result, target)
                    if send.fixed is None and send.tries_left > 1
                    else None
                )
                if unsafe is None:
                    return result
                failure = unsafe
            if info is None or queue is None or not await self._other_queue(send, failure, info, queue):
                await self._after(send, failure, info, broker_name, target)

    async def _other_queue(
        self, send: _Send, failure: AerobeeError, info: PublishInfo, queue: MessageQueue
    ) -> bool:
        """Whether the queue of a try no longer exists, so that the next try uses another one: nothing was stored.

        A queue that the caller named, or that the route never had, is the caller's mistake. Raises what `select` raises.
        """
        if not isinstance(failure, InvalidParameter) or queue not in info.queues:
            return False
        is_callers = send.fixed is not None and send.select is None
        send.queues_gone += 1
        if is_callers or not self._config.retry_count_max or send.queues_gone > QUEUE_GONE_TRIES_MAX:
            self._routes.refresh_behind(send.topic)
            return False
        for pause_s in QUEUE_GONE_PAUSES_S:
            now = _now()
            if now + pause_s >= send.deadline:
                return False
            await asyncio.sleep(pause_s)
            await self._routes.refresh(send.topic, now + _share_s(send.deadline - now))
            try:
                newer = self._routes.known.get(send.topic) or await self._routes.info(
                    send.topic, send.deadline
                )
            except AerobeeError as error:
                log.info("topic %s has lost a queue, and its route is not known: %s", send.topic, error)
                return False
            if queue not in newer.queues:
                if send.select is not None:
                    send.fixed = send.select(newer)
                return True
        return False

    async def _after(
        self,
        send: _Send,
        failure: AerobeeError,
        info: PublishInfo | None,
        broker_name: str,
        target: Target | None,
    ) -> None:
        """Return when the next try may begin. `target` None: no request was sent. Raises the send's error when no try
        is left."""
        now = _now()
        is_busy = isinstance(failure, SystemBusy)
        is_sent_elsewhere = (
            isinstance(failure, GoAway | NotLeaderForQueue) and send.go_aways < GO_AWAY_TRIES_MAX
        )
        is_waited_for = self._is_waited_for(send, failure, info, broker_name, target)
        if is_sent_elsewhere:
            send.go_aways += 1
        elif target is None and not is_waited_for:
            if info is not None or not send.attempts:
                raise failure
            send.tries_left = 0
        elif not is_waited_for:
            send.tries_left = send.tries_left - 1 if send.fixed is None or is_busy else 0
        is_final = target is not None and not is_retried(failure)
        if is_final and not send.may_be_stored:
            raise failure
        where = (
            f"{target.broker_name} at {target.address}" if target is not None else broker_name or "nameserver"
        )
        send.failed_at(where, failure)
        if is_final:
            raise send.failed() from failure
        if self._faults is not None and target is not None:
            self._faults.record_failure(broker_name, now)
        send.avoid = frozenset({broker_name})
        if send.tries_left > 0 and now < send.deadline:
            if is_waited_for and not is_sent_elsewhere:
                if send.refused(info, broker_name):
                    await send.pause()
            elif is_busy and (send.fixed is not None or (info is not None and len(info.targets) == 1)):
                # No other broker is left: wait before the next try at this one.
                await asyncio.sleep(min(BUSY_PAUSE_S * send.attempt_count, max(0.0, send.deadline - now)))
        if send.tries_left <= 0 or _now() >= send.deadline:
            if failure.route_stale:
                self._routes.refresh_behind(send.topic)  # for the next send
            raise send.failed() from failure
        if failure.route_stale and info is not None:
            now = _now()
            await self._routes.refresh(send.topic, now + _share_s(send.deadline - now))
            if _now() >= send.deadline:
                raise send.failed() from failure

    def _is_waited_for(
        self,
        send: _Send,
        failure: AerobeeError,
        info: PublishInfo | None,
        broker_name: str,
        target: Target | None,
    ) -> bool:
        """Whether surely nothing was stored and the same request may succeed soon."""
        if not self._config.retry_count_max:
            return False
        if target is not None:
            return isinstance(failure, NOT_STORED)
        if info is None:
            return self._may_come(send.topic, failure)
        # A queue whose broker was never in the route is the caller's mistake.
        return broker_name in info.masterless or bool(send.attempts)

    def _may_come(self, topic: str, failure: AerobeeError) -> bool:
        """Whether a missing route may appear soon: a topic that never had a route is the caller's mistake."""
        if not self._config.retry_count_max:
            return False
        return isinstance(failure, NoMaster) or (
            isinstance(failure, RouteError | NoNameServer) and topic in self._routes.once_known
        )

    def _not_stored_ok(self, result: object, target: Target) -> SendFailed | None:
        """Why a stored message is sent again; None when it is not."""
        if (
            not self._config.retry_when_not_stored_ok
            or not isinstance(result, SendResult)
            or result.status is SendStatus.SEND_OK
        ):
            return None
        text = f"stored by {target.broker_name} with {result.status.value}"
        return SendFailed(text, retriable=True, may_be_stored=True)


def may_be_stored(failure: BaseException) -> bool:
    """Whether a broker may have stored the message despite this failure."""
    if isinstance(failure, SendFailed):
        return failure.may_be_stored
    return isinstance(failure, AerobeeError) and not isinstance(failure, (*_SURELY_NOT_STORED, UsageError))


def waited_too_long(topic: str, timeout_s: float, in_flight_max: int) -> SendFailed:
    """The error of a send whose deadline passed while it waited for a slot: nothing was sent."""
    return SendFailed(
        f"a message for topic {topic} was not sent: for {timeout_s:g} s, all its time, it waited "
        f"for its turn behind {plural(in_flight_max, 'send')} without an answer (in_flight_max). Send fewer concurrently, "
        f"or give a send more time (send_timeout_s)",
        retriable=True,
    )


def is_retried(failure: AerobeeError) -> bool:
    """True when another broker may accept the message."""
    if isinstance(failure, RemoteError):
        return failure.code in RETRIED_CODES
    return isinstance(failure, (TransportError, SendFailed))


def _send_failed(send: _Send, elapsed_s: float) -> SendFailed:
    tries = [text if count == 1 else f"{plural(count, 'time')} {text}" for text, count in send.texts.items()]
    if others := send.attempt_count - send.texts.total():
        tries.append(f"{plural(others, 'time')} something else")
    known = (
        "is not confirmed and may be stored: no broker confirmed it"
        if send.may_be_stored
        else "was not stored"
    )
    return SendFailed(
        f"a message for topic {send.topic} {known} in {plural(send.attempt_count, 'try', 'tries')} "
        f"within {elapsed_s:.2f} s ({'; '.join(tries)})",
        tuple(send.attempts),
        retriable=send.is_retriable,
        may_be_stored=send.may_be_stored,
    )


def _now() -> float:
    """Deadlines of calls use the event loop's time, which a test that moves the clock does not change."""
    return asyncio.get_running_loop().time()
