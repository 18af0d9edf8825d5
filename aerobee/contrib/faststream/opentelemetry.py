"""FastStream's OpenTelemetry middleware for this broker. Needs `faststream[otel]`.

Names and attributes follow OpenTelemetry's messaging conventions for RocketMQ.
"""

from __future__ import annotations

from typing import Any

from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.semconv.trace import SpanAttributes

from aerobee.contrib.faststream.body_bytes import body_bytes
from aerobee.contrib.faststream.incoming import Incoming


class AerobeeTelemetrySettingsProvider:
    """Attributes of spans."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, message: Any) -> dict[str, Any]:
        """Attributes of the span of a handler."""
        raw: Incoming | tuple[Incoming, ...] = message.raw_message
        first = raw[0] if isinstance(raw, tuple) else raw
        attributes: dict[str, Any] = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_ID: message.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: message.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: body_bytes(message),
            MESSAGING_DESTINATION_PUBLISH_NAME: first.topic,
        }
        if isinstance(raw, tuple):
            attributes[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(raw)
        return attributes | _rocketmq(first.tag, first.keys, first.message_group)

    def get_consume_destination_name(self, message: Any) -> str:
        """The topic."""
        raw: Incoming | tuple[Incoming, ...] = message.raw_message
        return raw[0].topic if isinstance(raw, tuple) else raw.topic

    def get_publish_attrs_from_cmd(self, cmd: Any) -> dict[str, Any]:
        """Attributes of the span of a send."""
        options = cmd.options
        attributes = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }
        return attributes | _rocketmq(options.tag, options.keys, options.message_group)

    def get_publish_destination_name(self, cmd: Any) -> str:
        """The topic."""
        return str(cmd.destination)


class AerobeeTelemetryMiddleware(TelemetryMiddleware):
    """`AerobeeBroker(middlewares=[AerobeeTelemetryMiddleware(tracer_provider=provider)])`."""

    def __init__(
        self,
        *,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        meter: Any = None,
        include_messages_counters: bool = True,
    ) -> None:
        """The arguments are those of FastStream's middlewares."""
        super().__init__(
            settings_provider_factory=lambda _: AerobeeTelemetrySettingsProvider(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )


def _rocketmq(tag: str | None, keys: tuple[str, ...], message_group: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if tag:
        found["messaging.rocketmq.message.tag"] = tag
    if keys:
        found["messaging.rocketmq.message.keys"] = list(keys)
    if message_group:
        found["messaging.rocketmq.message.group"] = message_group
    return found
