"""POP calls to a broker: pop, acknowledge, change the invisible time; and the assignment that selects pull or POP.

All raise RemoteError for a refusal and TransportError when the broker does not answer.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from dataclasses import replace

import orjson

from aerobee.client.consumer.popped import PoppedMessage, decode_lite_popped, decode_popped
from aerobee.client.consumer.subscription import Subscription
from aerobee.client.session.session import Session
from aerobee.errors import MalformedFrame, RemoteError
from aerobee.lite_topic import split_lite_queue
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.codes import RequestCode, ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand, boolean_text

ANSWER_MARGIN_S = 10.0  # added to the time that a pop may wait at the broker
BATCH_DISTANCE_MAX = 512  # maximum number of bits in one entry of a batch of acknowledgements
NOTHING = frozenset(
    {ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}
)


async def pop(
    session: Session,
    group: str,
    queue: MessageQueue,
    subscription: Subscription,
    *,
    count_max: int,
    invisible_ms: int,
    wait_ms: int,
    from_begin: bool,
    ordered: bool = False,
    attempt_id: str = "",
) -> list[PoppedMessage]:
    """Pop messages of a queue, or with queue id -1 of any queue of its broker; empty when none arrived in time.

    Raises RemoteError POLLING_FULL (209) when too many pops are pending at the broker.
    """
    address = await session.broker_address(queue.broker_name, queue.topic)
    fields = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "maxMsgNums": str(count_max),
        "invisibleTime": str(invisible_ms),
        "pollTime": str(wait_ms),
        "bornTime": str(session.clock.now_ms()),
        "initMode": "0" if from_begin else "1",
        "expType": subscription.expression_type,
        "exp": subscription.expression,
        "order": boolean_text(ordered),
        "bname": queue.broker_name,
    }
    if attempt_id:
        fields["attemptId"] = attempt_id
    answer = await session.call(
        address,
        RemotingCommand(RequestCode.POP_MESSAGE.value, fields),
        timeout_s=wait_ms / 1000 + ANSWER_MARGIN_S,
    )
    if answer.code in NOTHING:
        return []
    session.checked(answer, address=address, request=request_name(RequestCode.POP_MESSAGE))
    return decode_popped(answer, queue.topic, group, queue.broker_name, session.clock.monotonic())


async def pop_lite(
    session: Session,
    group: str,
    queue: MessageQueue,
    *,
    count_max: int,
    invisible_ms: int,
    wait_ms: int,
) -> list[PoppedMessage]:
    """Pop messages of the lite topics that this client subscribes, at the broker of `queue`; empty when none arrived in time.

    Raises RemoteError POLLING_FULL (209) when too many pops are pending at the broker.
    """
    address = await session.broker_address(queue.broker_name, queue.topic)
    fields = {
        "clientId": session.client_id,
        "consumerGroup": group,
        "topic": queue.topic,
        "maxMsgNum": str(count_max),
        "invisibleTime": str(invisible_ms),
        "pollTime": str(wait_ms),
        "bornTime": str(session.clock.now_ms()),
        "bname": queue.broker_name,
    }
    answer = await session.call(
        address,
        RemotingCommand(RequestCode.POP_LITE_MESSAGE.value, fields),
        timeout_s=wait_ms / 1000 + ANSWER_MARGIN_S,
    )
    if answer.code in NOTHING:
        return []
    session.checked(answer, address=address, request=request_name(RequestCode.POP_LITE_MESSAGE))
    return decode_lite_popped(answer, queue.topic, queue.broker_name, session.clock.monotonic())


def _message_fields(group: str, message: PoppedMessage) -> dict[str, str]:
    lite = split_lite_queue(message.pop_queue.topic)
    if lite is not None:
        return {**_queue_fields(group, message), "topic": lite[0], "liteTopic": lite[1]}
    return _queue_fields(group, message)


def _queue_fields(group: str, message: PoppedMessage) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": message.pop_queue.topic,
        "queueId": str(message.pop_queue.queue_id),
        "offset": str(message.queue_offset),
        "extraInfo": str(message.handle),
        "bname": message.pop_queue.broker_name,
    }


async def ack(session: Session, group: str, message: PoppedMessage) -> None:
    """Acknowledge one message. Raises RemoteError NO_MESSAGE (208) when it was already redelivered."""
    request = RemotingCommand(RequestCode.ACK_MESSAGE.value, _message_fields(group, message))
    await session.invoke_broker(message.pop_queue.broker_name, message.topic, request)


async def ack_all(session: Session, group: str, messages: Iterable[PoppedMessage]) -> None:
    """Acknowledge messages with one call per broker. Raises the first failure when all calls have ended.

    The reply to a batch does not state which acknowledgements came too late.
    """
    by_broker: dict[str, list[PoppedMessage]] = {}
    for message in messages:
        by_broker.setdefault(message.pop_queue.broker_name, []).append(message)
    outcomes = await asyncio.gather(
        *(
            ack(session, group, held[0]) if len(held) == 1 else _ack_batch(session, group, name, held)
            for name, held in by_broker.items()
        ),
        return_exceptions=True,
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _ack_batch(session: Session, group: str, broker_name: str, messages: list[PoppedMessage]) -> None:
    bits: dict[tuple[str, str, int, int, int, int, int], int] = {}
    for message in messages:
        handle = message.handle
        distance = message.queue_offset - handle.start_offset
        start = handle.start_offset
        if not 0 <= distance < BATCH_DISTANCE_MAX or message.lite_topic:
            await ack(session, group, message)
            continue
        key = (
            message.topic, handle.retry, start, handle.queue_id, handle.revive_queue_id, handle.pop_time,
            handle.invisible_ms,
        )  # fmt: skip
        bits[key] = bits.get(key, 0) | 1 << distance
    if not bits:
        return
    entries = [
        {
            "b": base64.b64encode(mask.to_bytes((mask.bit_length() + 7) // 8, "little")).decode(),
            "c": group, "it": invisible_ms, "pt": pop_time, "q": queue_id, "r": retry, "rq": revive_queue_id,
            "so": start, "t": topic,
        }
        for (topic, retry, start, queue_id, revive_queue_id, pop_time, invisible_ms), mask in bits.items()
    ]  # fmt: skip
    body = orjson.dumps({"acks": entries, "brokerName": broker_name})
    request = RemotingCommand(RequestCode.BATCH_ACK_MESSAGE.value, {"bname": broker_name}, body)
    await session.invoke_broker(broker_name, messages[0].topic, request)


async def change_invisible(
    session: Session, group: str, message: PoppedMessage, invisible_ms: int, *, suspend: bool = False
) -> None:
    """Redeliver a message `invisible_ms` from now; the message gets a new handle.

    `suspend`: the delivery does not count as a try. Raises RemoteError NO_MESSAGE when the message was already
    redelivered.
    """
    fields = {
        **_message_fields(group, message),
        "invisibleTime": str(invisible_ms),
        "suspend": boolean_text(suspend),
    }
    request = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME.value, fields)
    answer = await session.invoke_broker(message.pop_queue.broker_name, message.topic, request)
    handle = message.handle
    message.handle = replace(
        handle,
        start_offset=handle.start_offset if handle.is_ordered else message.queue_offset,
        pop_time=answer.integer("popTime"),
        invisible_ms=answer.integer("invisibleTime"),
        revive_queue_id=answer.integer("reviveQid"),
    )


async def query_assignment(
    session: Session, group: str, topic: str, address: str
) -> tuple[frozenset[MessageQueue], frozenset[MessageQueue]] | None:
    """The broker's assignment for this member: (queues to pull, queues to pop; queue id -1: any queue of a broker).

    None: the broker has no assignment, and the present one stays.
    """
    body = {
        "clientId": session.client_id,
        "consumerGroup": group,
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": topic,
    }
    command = RemotingCommand(RequestCode.QUERY_ASSIGNMENT.value, None, orjson.dumps(body))
    answer = await session.invoke(address, command)
    fields = fastjson.loads_trusted(answer.body, "an assignment")
    if fields.get("messageQueueAssignments") is None:
        return None
    pulled: set[MessageQueue] = set()
    popped: set[MessageQueue] = set()
    for entry in json_fields.objects(fields, "messageQueueAssignments"):
        fields_of_queue = json_fields.mapping(entry, "messageQueue")
        queue = MessageQueue(
            json_fields.text(fields_of_queue, "topic"),
            json_fields.text(fields_of_queue, "brokerName"),
            json_fields.integer(fields_of_queue, "queueId"),
        )
        if not queue.topic or not queue.broker_name:
            raise MalformedFrame(f"an assignment of {address} names a queue without topic or broker")
        (popped if json_fields.text(entry, "mode", "PULL") == "POP" else pulled).add(queue)
    return frozenset(pulled), frozenset(popped)


def is_too_late(error: RemoteError) -> bool:
    """Whether a refusal means that this consumer no longer owns the message: it was redelivered or deleted."""
    return error.code == ResponseCode.NO_MESSAGE
