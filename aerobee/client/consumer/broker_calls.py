"""Calls of consumers to brokers: offsets, members, pulls, send-backs. One function per request code.

`address` is the broker; requests contain `queue.broker_name` as RocketMQ's clients send it. All raise RemoteError for a
refusal and TransportError when the broker does not answer.
"""

from __future__ import annotations

from typing import Any

import orjson

from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.verdict import GiveBack
from aerobee.client.consumer.subscription import Subscription
from aerobee.client.session.session import Session
from aerobee.errors import AerobeeError, MalformedFrame, QueryNotFound
from aerobee.message import MessageQueue
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand


def _queue_fields(queue: MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}


async def _offset(
    session: Session, code: RequestCode, queue: MessageQueue, extra: dict[str, str], field: str = "offset"
) -> int:
    answer = await session.invoke_queue(queue, RemotingCommand(code.value, {**_queue_fields(queue), **extra}))
    return answer.integer(field)


async def begin_offset(session: Session, queue: MessageQueue) -> int:
    """The first offset that is still stored."""
    return await _offset(session, RequestCode.GET_MIN_OFFSET, queue, {})


async def end_offset(session: Session, queue: MessageQueue) -> int:
    """The offset that the next message will get."""
    return await _offset(session, RequestCode.GET_MAX_OFFSET, queue, {"committed": "true"})


async def offset_for_time(
    session: Session, queue: MessageQueue, timestamp_ms: int, *, upper: bool = False
) -> int:
    """The first offset stored at or after a time; `upper`: the last one stored at or before it."""
    extra = {"timestamp": str(timestamp_ms), "boundaryType": "UPPER" if upper else "LOWER"}
    return await _offset(session, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, extra)


async def committed_offset(session: Session, group: str, queue: MessageQueue) -> int | None:
    """The committed offset of the group, None without one.

    The broker's rule for new queues, which would return 0 instead, is not used: see first_offset.py.
    """
    fields = {"consumerGroup": group, "setZeroIfNotFound": "false"}
    try:
        return await _offset(session, RequestCode.QUERY_CONSUMER_OFFSET, queue, fields)
    except QueryNotFound:
        return None


def commit_command(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    fields = {"consumerGroup": group, "commitOffset": str(offset), **_queue_fields(queue)}
    return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET.value, fields)


async def commit_offset(session: Session, group: str, queue: MessageQueue, offset: int) -> None:
    """Set the group's offset; the broker has it on return."""
    await session.invoke_queue(queue, commit_command(group, queue, offset))


async def group_members(session: Session, group: str, address: str) -> list[str]:
    """Client ids of the group's members, sorted."""
    answer = await session.invoke(
        address, RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP.value, {"consumerGroup": group})
    )
    try:
        ids: Any = orjson.loads(answer.body)["consumerIdList"]
        return sorted(str(client_id) for client_id in ids)
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedFrame(f"the member list of group {group} from {address} is not readable") from error


async def send_back(
    session: Session,
    group: str,
    message: ReceivedMessage,
    verdict: GiveBack,
    *,
    retry_count_max: int | None = None,
) -> None:
    """Let the broker that stored a message redeliver it after a delay (level -1: dead-letter it).

    `retry_count_max` None leaves the bound of redeliveries to the broker, which has the group's setting.

    The last four fields are Aerobee-specific; RocketMQ's brokers ignore them.
    """
    fields = {
        "offset": str(message.physical_offset),
        "group": group,
        "delayLevel": str(verdict.delay_level),
        "originMsgId": message.message_id,
        "originTopic": message.topic,
        "unitMode": "false",
        "bname": message.queue.broker_name,
    }
    if retry_count_max is not None:
        fields["maxReconsumeTimes"] = str(retry_count_max)
    causes = {"deadLetterReason": verdict.reason, "lastError": verdict.error}
    fields |= {name: text for name, text in causes.items() if text}
    if verdict.after_ms >= 0:
        fields["delayMillis"] = str(verdict.after_ms)
    if verdict.tries:
        fields["deliveryTries"] = str(verdict.tries)
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK.value, fields)
    await session.invoke_broker(message.queue.broker_name, message.queue.topic, request)


async def check_subscription(session: Session, group: str, subscription: Subscription, address: str) -> None:
    """Let a broker check an expression. Raises RemoteError (code 23) with the broker's reason for an invalid one."""
    body = {
        "clientId": session.client_id,
        "group": group,
        "namespace": "",
        "subscriptionData": subscription.to_data().to_dict(),
    }
    await session.invoke(
        address, RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG.value, None, orjson.dumps(body))
    )


async def lock_queues(
    session: Session, group: str, address: str, queues: list[MessageQueue], *, lease_s: float
) -> frozenset[MessageQueue]:
    """Lock queues of one broker for this client (ordered consumption); returns those that were granted.

    `leaseMillis` is the time after which this client stops trusting its lock; RocketMQ's brokers ignore it (60 s).
    """
    body = _lock_body(session, group, queues) | {"leaseMillis": round(lease_s * 1000)}
    answer = await session.invoke(
        address, RemotingCommand(RequestCode.LOCK_BATCH_MQ.value, {}, orjson.dumps(body))
    )
    try:
        granted: Any = orjson.loads(answer.body)["lockOKMQSet"]
        return frozenset(
            MessageQueue(str(entry["topic"]), str(entry["brokerName"]), int(entry["queueId"]))
            for entry in granted
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedFrame(f"the lock answer of {address} for group {group} is not readable") from error


async def unlock_queues(session: Session, group: str, address: str, queues: list[MessageQueue]) -> None:
    """Release locks, one-way."""
    body = orjson.dumps(_lock_body(session, group, queues))
    command = RemotingCommand(RequestCode.UNLOCK_BATCH_MQ.value, {}, body)
    await session.invoke_oneway(address, command)


def _lock_body(session: Session, group: str, queues: list[MessageQueue]) -> dict[str, Any]:
    return {
        "clientId": session.client_id,
        "consumerGroup": group,
        "mqSet": [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
            for queue in queues
        ],
        "onlyThisBroker": False,
    }


async def first_answer(session: Session, group: str, addresses: list[str]) -> list[str]:
    """The member list from the first of `addresses` that returns one. Raises the last failure when none does."""
    failure: AerobeeError | None = None
    for address in addresses:
        try:
            return await group_members(session, group, address)
        except AerobeeError as error:
            failure = error
    assert failure is not None, "called without an address"
    raise failure
