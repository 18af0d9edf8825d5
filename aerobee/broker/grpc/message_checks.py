"""Validates a message of SendMessage, in RocketMQ's order of checks. Core.

Source: SendMessageActivity, GrpcValidator, MessageConst.STRING_HASH_SET (RocketMQ 5.5.0).
"""

from __future__ import annotations

import re

from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.grpc.times import duration_ms, timestamp_ms
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_topic_fault
from aerobee.property_names import SYSTEM_PROPERTIES

USER_PROPERTIES_MAX = 128  # userPropertyMaxNum of RocketMQ's proxy
USER_PROPERTY_BYTES_MAX = 16_384  # maxUserPropertySize
MESSAGE_GROUP_BYTES_MAX = 64  # maxMessageGroupSize: one of as many bytes is refused
DELAY_MS_MAX = 86_400_000  # maxDelayTimeMills
RECOVERY_S_MAX = 3_600  # maxTransactionRecoverySecond
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_message(message: pb.Message, *, body_bytes_max: int, now_ms: int) -> None:
    """Raise RpcRefused for a message that may not be sent. `body_bytes_max` is maxMessageSize."""
    if not message.body:
        raise RpcRefused(pb.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(message.body) > body_bytes_max:
        raise RpcRefused(pb.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {body_bytes_max}")
    system = message.system_properties
    _check_user_properties(message)
    if system.HasField("tag"):
        _check_tag(system.tag)
    for key in system.keys:
        if not key.strip():
            raise RpcRefused(pb.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
        if CONTROL.search(key):
            raise RpcRefused(pb.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")
    _check_property_bytes(message)
    if not system.message_id.strip():
        raise RpcRefused(pb.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if CONTROL.search(system.message_id):
        raise RpcRefused(pb.ILLEGAL_MESSAGE_ID, "message id cannot contain control character")
    _check_times(system, now_ms)
    _check_message_group(system)
    if system.HasField("lite_topic") and (fault := lite_topic_fault(system.lite_topic)):
        raise RpcRefused(pb.ILLEGAL_LITE_TOPIC, fault)
    for text, what in ((system.born_host, "born host"), (system.trace_context, "trace context")):
        if CONTROL.search(text):
            raise RpcRefused(pb.BAD_REQUEST, f"{what} cannot contain control character")
    if system.priority < 0:
        raise RpcRefused(pb.INTERNAL_SERVER_ERROR, "The priority must be greater than or equal to 0.")


def _check_user_properties(message: pb.Message) -> None:
    properties = message.user_properties
    if len(properties) > USER_PROPERTIES_MAX:
        text = f"too many user properties, max is {USER_PROPERTIES_MAX}"
        raise RpcRefused(pb.MESSAGE_PROPERTIES_TOO_LARGE, text)
    for key, value in properties.items():
        if key in SYSTEM_PROPERTIES:
            raise RpcRefused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {key}")
        if CONTROL.search(key):
            text = "the key of property cannot contain control character"
            raise RpcRefused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
        if CONTROL.search(value):
            text = "the value of property cannot contain control character"
            raise RpcRefused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


def _check_tag(tag: str) -> None:
    if not tag.strip():
        raise RpcRefused(pb.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise RpcRefused(pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if CONTROL.search(tag):
        raise RpcRefused(pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")


def _check_property_bytes(message: pb.Message) -> None:
    system = message.system_properties
    texts = [system.tag, *system.keys]
    for pair in message.user_properties.items():
        texts += pair
    if sum(len(text.encode()) for text in texts) > USER_PROPERTY_BYTES_MAX:
        text = f"the total size of user property is too large, max is {USER_PROPERTY_BYTES_MAX}"
        raise RpcRefused(pb.MESSAGE_PROPERTIES_TOO_LARGE, text)


def _check_times(system: pb.SystemProperties, now_ms: int) -> None:
    if (
        system.HasField("orphaned_transaction_recovery_duration")
        and duration_ms(system.orphaned_transaction_recovery_duration) > RECOVERY_S_MAX * 1000
    ):
        text = f"the max transaction recovery time of message is too large, max is {RECOVERY_S_MAX}"
        raise RpcRefused(pb.BAD_REQUEST, text)
    if (
        system.HasField("delivery_timestamp")
        and timestamp_ms(system.delivery_timestamp) - now_ms > DELAY_MS_MAX
    ):
        text = f"the max delay time of message is too large, max is {DELAY_MS_MAX}"
        raise RpcRefused(pb.ILLEGAL_DELIVERY_TIME, text)


def _check_message_group(system: pb.SystemProperties) -> None:
    if not system.HasField("message_group"):
        return
    group = system.message_group
    if group and not group.strip():
        text = "message group cannot be the char sequence of whitespace"
        raise RpcRefused(pb.ILLEGAL_MESSAGE_GROUP, text)
    if len(group.encode()) >= MESSAGE_GROUP_BYTES_MAX:
        text = f"message group exceed the max size {MESSAGE_GROUP_BYTES_MAX}"
        raise RpcRefused(pb.ILLEGAL_MESSAGE_GROUP, text)
    if CONTROL.search(group):
        raise RpcRefused(pb.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character")
