"""Recall of a pending timer message: RECALL_MESSAGE 370 (MQProducer.recallMessage of RocketMQ)."""

from __future__ import annotations

from aerobee.client.session.session import Session
from aerobee.errors import MalformedFrame, UsageError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.recall_handle import RecallHandle, decode_recall_handle


def parse_handle(text: str, topic: str | None = None) -> RecallHandle:
    """Check a recall handle. Raises UsageError for an invalid handle, or one of another topic."""
    if not isinstance(text, str):
        raise UsageError(
            f"the recall handle is {type(text).__name__}, not text: SendResult.recall_handle holds it"
        )
    try:
        handle = decode_recall_handle(text)
    except ValueError as error:
        raise UsageError(
            f"{error}; a handle is what SendResult.recall_handle holds, `aerobee send` prints for a "
            "delayed message, and `aerobee timer list` shows"
        ) from error
    if topic is not None and handle.topic != topic:
        raise UsageError(f"the handle is of a message of topic {handle.topic}, not of {topic}")
    return handle


async def recall_message(
    session: Session, group: str, topic: str, handle_text: str, *, timeout_s: float
) -> str:
    """Send the recall to the broker that stores the message; returns the message id. Raises RemoteError, RouteError,
    UsageError."""
    handle = parse_handle(handle_text, topic)
    request = RemotingCommand(
        RequestCode.RECALL_MESSAGE.value,
        {"producerGroup": group, "topic": topic, "recallHandle": handle_text, "bname": handle.broker_name},
    )
    answer = await session.invoke_broker(handle.broker_name, topic, request, timeout_s=timeout_s)
    message_id = answer.field("msgId")
    if not message_id:
        raise MalformedFrame(f"the answer of broker {handle.broker_name} to RECALL_MESSAGE has no msgId")
    return message_id
