"""The tries of one send: which failures another try may mend, where it goes, and when there is none left. Follows
DefaultMQProducerImpl.sendDefaultImpl.

The first try of an ordinary send is made by Producer.send itself, without a coroutine of its own; only what became of it
comes here when it failed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from aerobee.client.config import ProducerConfig
from aerobee.client.producer.fault_avoidance import FaultAvoidance
from aerobee.client.producer.publish_info import PublishInfo, Target
from aerobee.client.producer.publish_routes import PublishRoutes, target_of
from aerobee.client.results import SendResult, SendStatus
from aerobee.errors import (
    AerobeeError,
    GoAway,
    NotLeaderForQueue,
    RemoteError,
    SendFailed,
    SystemBusy,
    TransportError,
)
from aerobee.message import MessageQueue
from aerobee.words import plural

T = TypeVar("T")
# attempt(target, queue, remaining_s): one try at one broker
Attempt = Callable[[Target, MessageQueue, float], Coroutine[Any, Any, T]]

# Answers after which RocketMQ's client tries another broker (retryResponseCodes).
RETRIED_CODES = frozenset({17, 14, 1, 2, 16, 204, 205, 501, 1500})
BUSY_PAUSE_S = (
    0.25  # before the first repeat at the only broker when it is busy; each further one waits longer
)
GO_AWAY_TRIES_MAX = (
    3  # repeats at brokers that shut down, or lead a queue no more; they do not count as tries
)


@dataclass(frozen=True, slots=True)
class FirstTry:
    """A try that was made, and failed, before SendTries had to do with it. `began` is the loop's time."""

    info: PublishInfo
    target: Target
    began: float
    failure: AerobeeError


class SendTries:
    """Runs tries for one producer."""

    def __init__(self, routes: PublishRoutes, config: ProducerConfig, faults: FaultAvoidance | None) -> None:
        self._routes = routes
        self._config = config
        self._faults = faults

    async def run(
        self,
        topic: str,
        fixed: MessageQueue | None,
        deadline: float,
        attempt: Attempt[T],
        *,
        next_queue: MessageQueue | None = None,
        first: FirstTry | None = None,
    ) -> T:
        """Run `attempt` until it succeeds, fails for good, or tries or time are used up.

        `fixed`: this queue and no other; one try, unless its broker is busy, which has stored nothing and may be asked
        again. `next_queue`: where the first try goes. `first`: it is made already.
        """
        time = asyncio.get_running_loop().time
        failure: AerobeeError
        attempts: list[tuple[str, BaseException]] = []
        tries_left = 1 + self._config.retry_count_max
        go_aways = 0
        avoid: str | None = None
        now = time()
        began = now if first is None else first.began
        while True:
            if first is not None:
                info, target, failure = first.info, first.target, first.failure
                first = None
            else:
                try:
                    info = self._routes.known.get(topic) or await self._routes.info(topic, deadline)
                except AerobeeError as error:
                    if not attempts:
                        raise
                    attempts.append(("nameserver", error))
                    raise send_failed(topic, attempts, time() - began) from error
                queue = fixed or next_queue or info.next_queue(avoid=avoid, faults=self._faults, now_s=now)
                next_queue = None
                target = target_of(info, queue)
                try:
                    result = await attempt(target, queue, deadline - now)
                except AerobeeError as error:
                    failure = error
                else:
                    if self._faults is not None:
                        ended = time()
                        self._faults.record(target.broker_name, (ended - now) * 1000, ended)
                    unsafe = self._not_stored_ok(result, target) if fixed is None and tries_left > 1 else None
                    if unsafe is None:
                        return result
                    failure = unsafe
            now = time()
            is_busy = isinstance(failure, SystemBusy)
            if isinstance(failure, GoAway | NotLeaderForQueue) and go_aways < GO_AWAY_TRIES_MAX:
                go_aways += 1
            elif fixed is None or is_busy:
                tries_left -= 1
            else:
                tries_left = 0
            if not is_retried(failure):
                raise failure
            attempts.append((f"{target.broker_name} at {target.address}", failure))
            if self._faults is not None:
                self._faults.record_failure(target.broker_name, now)
            if tries_left <= 0 or now >= deadline:
                if failure.route_stale:
                    self._routes.refresh_behind(topic)  # for the send after this one
                raise send_failed(topic, attempts, now - began) from failure
            avoid = target.broker_name
            if is_busy and (fixed is not None or len(info.targets) == 1):
                # No other broker to go to: give this one the time that it asks for.
                await asyncio.sleep(min(BUSY_PAUSE_S * len(attempts), max(0.0, deadline - now)))
                now = time()
            if failure.route_stale:
                await self._routes.refresh(topic, deadline)

    def _not_stored_ok(self, result: object, target: Target) -> SendFailed | None:
        """Why a message that a broker has is sent again, None when it is not."""
        if (
            not self._config.retry_when_not_stored_ok
            or not isinstance(result, SendResult)
            or result.status is SendStatus.SEND_OK
        ):
            return None
        return SendFailed(f"stored by {target.broker_name} with {result.status.value}")


def is_retried(failure: AerobeeError) -> bool:
    """True when another broker may do what this one did not."""
    if isinstance(failure, RemoteError):
        return failure.code in RETRIED_CODES
    return isinstance(failure, (TransportError, SendFailed))


def send_failed(topic: str, attempts: list[tuple[str, BaseException]], elapsed_s: float) -> SendFailed:
    counted = Counter(f"{place}: {failure}" for place, failure in attempts)  # in the order of their first
    tries = "; ".join(
        text if count == 1 else f"{plural(count, 'time')} {text}" for text, count in counted.items()
    )
    return SendFailed(
        f"a message for topic {topic} was not stored in {plural(len(attempts), 'try', 'tries')} "
        f"within {elapsed_s:.2f} s ({tries})",
        tuple(attempts),
    )
