"""Attributes of spans and metrics by the semantic conventions of messaging and of RocketMQ.

Source: OpenTelemetry semantic conventions 1.44, docs/messaging (status: development). Their names are written here, because the
package opentelemetry-semantic-conventions may rename those of this status in each release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aerobee.client.base.received import ReceivedMessage
from aerobee.message import SHARDING_KEY, Message
from aerobee.property_names import TIMER_DELAYS, TIMER_DELIVER_MS, TRAN_MSG

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

BATCH_MESSAGE_COUNT = "messaging.batch.message_count"
BODY_SIZE = "messaging.message.body.size"
CONSUMER_GROUP = "messaging.consumer.group.name"
DESTINATION = "messaging.destination.name"
ERROR_TYPE = "error.type"
MESSAGE_ID = "messaging.message.id"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
PARTITION_ID = "messaging.destination.partition.id"
SERVER_ADDRESS, SERVER_PORT = "server.address", "server.port"
SYSTEM = "messaging.system"
DELAY_LEVEL = "messaging.rocketmq.message.delay_time_level"
DELIVERY_TIMESTAMP = "messaging.rocketmq.message.delivery_timestamp"
MESSAGE_GROUP = "messaging.rocketmq.message.group"
MESSAGE_KEYS = "messaging.rocketmq.message.keys"
MESSAGE_TAG = "messaging.rocketmq.message.tag"
MESSAGE_TYPE = "messaging.rocketmq.message.type"
NAMESPACE = "messaging.rocketmq.namespace"
# The conventions have no attribute for it.
DELIVERY_ATTEMPT = "aerobee.message.delivery_attempt"

Attributes = dict[str, str | int | Sequence[str]]


def operation(kind: str, name: str, topics: Iterable[str], group: str = "") -> Attributes:
    """The attributes of an operation with messages of these topics; the destination is named when there is one."""
    found: Attributes = {SYSTEM: "rocketmq", OPERATION_TYPE: kind, OPERATION_NAME: name}
    different = dict.fromkeys(topics)
    if len(different) == 1:
        (topic,) = different
        found[DESTINATION] = topic
        namespace, separator, _ = topic.partition("%")
        if namespace and separator:
            found[NAMESPACE] = namespace
    if group:
        found[CONSUMER_GROUP] = group
    return found


def span_name(attributes: Attributes) -> str:
    """`send orders`."""
    return " ".join(str(attributes[key]) for key in (OPERATION_NAME, DESTINATION) if key in attributes)


def of_message(message: Message) -> Attributes:
    """The attributes of one message to send."""
    properties = dict(message.properties)
    found = _of_properties(properties, message.tag, message.keys)
    found[BODY_SIZE] = len(message.body)
    if message.delay_level:
        found[MESSAGE_TYPE] = "delay"
        found[DELAY_LEVEL] = message.delay_level
    elif (timer := message.timer_property()) is not None:
        _note_delay(found, {timer[0]: timer[1]})
    return found


def of_received(message: ReceivedMessage) -> Attributes:
    """The attributes of one received message."""
    found = _of_properties(message.properties, message.tag, message.keys)
    found[MESSAGE_ID] = message.message_id
    found[BODY_SIZE] = len(message.stored_body)
    found[PARTITION_ID] = f"{message.queue.broker_name}/{message.queue.queue_id}"
    found[SERVER_ADDRESS], found[SERVER_PORT] = message.store_host
    found[DELIVERY_ATTEMPT] = message.reconsume_times + 1
    return found


def _of_properties(properties: Mapping[str, str], tag: str | None, keys: tuple[str, ...]) -> Attributes:
    found: Attributes = {MESSAGE_TYPE: "normal"}
    if tag:
        found[MESSAGE_TAG] = tag
    if keys:
        found[MESSAGE_KEYS] = keys
    if properties.get(TRAN_MSG) == "true":
        found[MESSAGE_TYPE] = "transaction"
    elif SHARDING_KEY in properties:
        found[MESSAGE_TYPE] = "fifo"
        found[MESSAGE_GROUP] = properties[SHARDING_KEY]
    else:
        _note_delay(found, properties)
    return found


def _note_delay(found: Attributes, properties: Mapping[str, str]) -> None:
    if any(name in properties for name in TIMER_DELAYS):
        found[MESSAGE_TYPE] = "delay"
        at_ms = properties.get(TIMER_DELIVER_MS, "")
        if at_ms.isdecimal() and len(at_ms) <= 15:
            found[DELIVERY_TIMESTAMP] = int(at_ms)
