"""Gives a message back to a broker: for a later try, or as a dead letter.

Follows DefaultMQPushConsumerImpl.sendMessageBack (RocketMQ). First CONSUMER_SEND_MSG_BACK (36) at the broker that
stored it; when that fails, a new message to the group's retry topic, which a broker dead-letters when the header states
that no tries are left. Aerobee's brokers store the request's additional fields (reason, last error, number of tries);
RocketMQ's ignore them.
"""

from __future__ import annotations

import logging

from aerobee.client.base.received import ReceivedMessage, note_given_back, was_given_back
from aerobee.client.base.topic_route import publish_queues
from aerobee.client.base.verdict import GiveBack, Reject
from aerobee.client.consumer.broker_calls import send_back
from aerobee.client.consumer.group_retries import FOREVER, RETRY_COUNT_DEFAULT, GroupRetries
from aerobee.client.session.send_header import SendTemplate, decode_send_reply
from aerobee.client.session.session import INNER_PRODUCER_GROUP, Session
from aerobee.client.session.stale_routes import is_not_stored
from aerobee.errors import AerobeeError, RouteError
from aerobee.message import (
    DEAD_LETTER_REASON,
    DELIVERY_TRIES,
    DLQ_PREFIX,
    LAST_ERROR,
    ORIGIN_POSITION,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    encode_properties,
)
from aerobee.remoting.body.queue_mapping import LOGICAL_BROKER_PREFIX
from aerobee.words import plural

log = logging.getLogger(__name__)

RETRY_LEVEL_FIRST = 3  # delay level of the first retry: 10 s
BROKER_ROOM_BYTES = 512  # reserved for properties that a broker adds to a message


class GivesBack:
    """Redelivery of messages that a consumer's group did not consume."""

    def __init__(self, session: Session, group: str, *, retries: GroupRetries) -> None:
        self._session = session
        self._group = group
        self._retries = retries

    async def give_back(self, message: ReceivedMessage, verdict: GiveBack) -> bool:
        """True when a broker accepted the message, now or before; False, after a warning, when no broker did."""
        if was_given_back(message):
            return True
        if not await self._give_back(message, verdict):
            return False
        note_given_back(message)
        return True

    async def _give_back(self, message: ReceivedMessage, verdict: GiveBack) -> bool:
        broker_name = self._session.routes.leader_of(message.queue)
        topic = message.queue.topic
        bound = await self._retries.requested(broker_name, topic)
        # A broker dead-letters a message after its last try without a word: the log of the consumer names it.
        is_last = verdict.is_dead or message.reconsume_times >= await self._retries.bound(broker_name, topic)
        try:
            # For a logical queue it is unknown which of its brokers has the record: a new message goes to the retry topic.
            if not message.queue.broker_name.startswith(LOGICAL_BROKER_PREFIX):
                await send_back(self._session, self._group, message, verdict, retry_count_max=bound)
                self._given_back(message, verdict, is_last=is_last)
                return True
        except AerobeeError as error:
            log.warning("%s is not accepted back (%s), sending it to the retry topic", message, error)
        try:
            try:
                await self._send_to_retry_topic(message, verdict, bound)
            except AerobeeError as error:
                if not is_not_stored(error):
                    raise
                await self._session.routes.refresh(RETRY_PREFIX + self._group)
                await self._send_to_retry_topic(message, verdict, bound)
            self._given_back(message, verdict, is_last=is_last)
            return True
        except AerobeeError as error:
            log.warning("%s cannot be sent to the retry topic either (%s)", message, error)
        return False

    def _given_back(self, message: ReceivedMessage, verdict: GiveBack, *, is_last: bool) -> None:
        meter = self._session.meter
        if is_last:
            log_dead_letter(self._group, message, verdict)
            if meter is not None:
                meter.dead_lettered(message.topic)
        elif meter is not None:
            meter.retried(message.topic)

    async def _send_to_retry_topic(
        self, message: ReceivedMessage, verdict: GiveBack, bound: int | None
    ) -> None:
        """Fallback when the broker refuses its message: send a new message to the retry topic."""
        topic = RETRY_PREFIX + self._group
        session = self._session
        route = await session.routes.get(topic)
        queues = publish_queues(route)
        if not queues:
            raise RouteError(topic, f"retry topic {topic} has no queue that can be written")
        queue = session.random.choice(queues)
        reconsume_times = message.reconsume_times + 1
        if verdict.is_dead:
            # Above the bound: any broker that receives the message dead-letters it.
            bound = RETRY_COUNT_DEFAULT if bound is None else min(bound, FOREVER - 1)
            reconsume_times = max(reconsume_times, bound + 1)
        properties = {
            **message.properties,
            "RETRY_TOPIC": message.topic,
            "ORIGIN_MESSAGE_ID": message.properties.get("ORIGIN_MESSAGE_ID") or message.message_id,
            "RECONSUME_TIME": str(reconsume_times),
        }
        if message.queue.topic == message.topic:
            queue_of = message.queue
            properties[ORIGIN_POSITION] = f"{queue_of.broker_name}/{queue_of.queue_id}@{message.queue_offset}"
        properties.pop("MAX_RECONSUME_TIMES", None)
        if bound is not None:
            properties["MAX_RECONSUME_TIMES"] = str(bound)
        if verdict.is_dead:
            properties.pop("DELAY", None)
        else:
            properties["DELAY"] = str(verdict.delay_level or RETRY_LEVEL_FIRST + message.reconsume_times)
        address = await session.broker_address(queue.broker_name, topic)
        template = SendTemplate(
            group=INNER_PRODUCER_GROUP,
            queue=queue,
            default_topic="TBW102",
            default_queue_count=4,
            reconsume_times=reconsume_times,
            reconsume_times_max=bound,
        )
        timeout_s = session.config.request_timeout_s
        connection = await session.remoting.connect(address, timeout_s=timeout_s)
        opaque = connection.next_opaque()
        frame = template.frame(
            opaque=opaque,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp_ms=session.clock.now_ms(),
            flag=message.flag,
            properties=_with_causes(properties, message, verdict),
            body=message.stored_body,
        )
        reply = await connection.call(frame, opaque, timeout_s, "SEND_MESSAGE_V2")
        decode_send_reply(reply, queue, message.message_id, address)


def log_dead_letter(group: str, message: ReceivedMessage, verdict: GiveBack) -> None:
    """Log that a message went to the dead letters, where it is, and why."""
    tries = verdict.tries or message.reconsume_times + 1
    reason = verdict.reason or f"{plural(tries, 'try', 'tries')} failed"
    error = f" ({verdict.error})" if verdict.error else ""
    # A rejection is the decision of the handler; anything else is a failure.
    log.log(
        logging.INFO if verdict.error.startswith(Reject.__name__) else logging.ERROR,
        "%s is dead-lettered: %s%s. It is in topic %s: `aerobee dlq show %s --id %s`",
        message, reason, error, DLQ_PREFIX + group, group, message.message_id,
    )  # fmt: skip


def _with_causes(properties: dict[str, str], message: ReceivedMessage, verdict: GiveBack) -> str:
    """The property text, with the error as far as there is space for it."""
    causes = {LAST_ERROR: verdict.error}
    if verdict.is_dead:
        causes[DEAD_LETTER_REASON] = verdict.reason
        causes[DELIVERY_TRIES] = str(verdict.tries or message.reconsume_times + 1)
    with_causes = encode_properties(properties | {name: text for name, text in causes.items() if text})
    if len(with_causes.encode(errors="surrogateescape")) <= PROPERTIES_BYTES_MAX - BROKER_ROOM_BYTES:
        return with_causes
    return encode_properties(properties)
