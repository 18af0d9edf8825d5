"""The PopQueue of a queue of dramatiq: decodes messages, and sends those on whose ETA is beyond the brokers' maximum."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from dramatiq import Message as ActorMessage
from dramatiq.errors import DecodeError

from aerobee.client.base.config import ClientConfig
from aerobee.client.producer.producer import Producer
from aerobee.contrib.delivery import Delivery, Verdict
from aerobee.contrib.index_key import index_keys
from aerobee.contrib.pop_queue import PopQueue
from aerobee.errors import AerobeeError
from aerobee.message import Message

log = logging.getLogger(__name__)

ETA = "eta"  # option of a message: milliseconds since the epoch
# A timer of RocketMQ is up to a second early (timerPrecisionMs); the worker waits for the rest.
EARLY_MS = 1_000
ACTOR_PROPERTY = "dramatiq_actor"


def stored_message(topic: str, message: ActorMessage, now_ms: int, timer_max_s: float) -> Message:
    """The message as a broker stores it; one with an ETA is delivered then, or after `timer_max_s`."""
    eta_ms = eta_of(message)
    at_s = min(eta_ms, now_ms + timer_max_s * 1000) / 1000 if eta_ms is not None and eta_ms > now_ms else None
    return Message(
        topic,
        message.encode(),
        keys=index_keys(message.message_id),
        properties={ACTOR_PROPERTY: message.actor_name} if message.actor_name.isprintable() else {},
        deliver_at=at_s,
    )


def eta_of(message: ActorMessage) -> float | None:
    """When the message is due, in milliseconds since the epoch; None: immediately."""
    eta = message.options.get(ETA)
    return eta if isinstance(eta, int | float) and not isinstance(eta, bool) else None


def decoded(body: bytes, queue_name: str) -> ActorMessage:
    """dramatiq's message of a body. Raises DecodeError for one that would stop a thread of the worker."""
    message = ActorMessage.decode(body)
    kinds = {"actor_name": str, "message_id": str, "kwargs": dict, "options": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(getattr(message, name), kind)]
    if wrong:
        raise DecodeError(f"a message of the queue {queue_name} has a wrong {', '.join(wrong)}", body, None)
    if message.queue_name != queue_name:
        raise DecodeError(f"a message of the queue {message.queue_name!r} is in {queue_name}", body, None)
    return message


class ActorQueue(PopQueue):
    """Messages of `topic` for the group of the same name; their envelope is dramatiq's Message."""

    def __init__(
        self,
        producer: Producer,
        nameservers: str | Sequence[str],
        queue_name: str,
        topic: str,
        *,
        client: ClientConfig | None,
        wanted: Callable[[], int],
        notify: Callable[[], None],
        invisible_s: float,
        wait_s: float,
        timer_max_s: float,
    ) -> None:
        """`timer_max_s`: maximum delay of the brokers. The others as of PopQueue."""
        super().__init__(
            nameservers,
            topic,
            client=client,
            wanted=wanted,
            notify=notify,
            invisible_s=invisible_s,
            wait_s=wait_s,
        )
        self._producer = producer
        self._queue_name = queue_name
        self._timer_max_s = timer_max_s

    async def _accept(self, delivery: Delivery) -> bool:
        try:
            message = decoded(bytes(delivery.message.body), self._queue_name)
        except DecodeError as error:
            log.error("queue %s: %s becomes a dead letter: %s", self.topic, delivery.message, error)
            self.settle(delivery, Verdict.DEAD_LETTER, str(error))
            return False
        delivery.envelope = message
        eta_ms, now_ms = eta_of(message), round(time.time() * 1000)
        if eta_ms is None or eta_ms <= now_ms:
            message.options.pop(ETA, None)
        elif eta_ms > now_ms + EARLY_MS and await self._send_on(delivery, message, now_ms):
            self.settle(delivery, Verdict.ACK)
            return False
        return True

    async def _send_on(self, delivery: Delivery, message: ActorMessage, now_ms: int) -> bool:
        """The next step towards a far ETA. False: no broker took it, and the worker holds the message."""
        delivery.is_busy = True
        try:
            await self._producer.send(stored_message(self.topic, message, now_ms, self._timer_max_s))
        except AerobeeError as error:
            log.warning(
                "queue %s: the worker waits for the ETA of %s: %s", self.topic, delivery.message, error
            )
            return False
        finally:
            delivery.is_busy = False
        return True
