"""OpenTelemetry spans for sends and handler calls, joined by the W3C trace context in message properties (extra `otel`).

    telemetry = OpenTelemetry()
    Producer(..., observers=[telemetry])
    PushConsumer(..., observers=[telemetry])

A send is a span of kind PRODUCER; its context travels in the properties `traceparent` and `tracestate` (whatever the
configured propagator writes), so a consumer in any language can continue the trace. A handler call is a span of kind
CONSUMER, the child of the send, and the current span while the handler runs; one for several messages (`batch_size`
above 1) has a link to each of them instead. Names and attributes follow the semantic conventions of messaging. Nothing
of Aerobee imports this module by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span

from aerobee.client.base.observer import ConsumeEnded, SendEnded
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.results import SendResult
from aerobee.message import Message

INSTRUMENTATION = "aerobee"


class OpenTelemetry:
    """A SendObserver and a ConsumeObserver. Uses the global tracer provider and propagator by default."""

    def __init__(self, tracer: Tracer | None = None, *, propagator: TextMapPropagator | None = None) -> None:
        self._tracer = tracer or trace.get_tracer(INSTRUMENTATION)
        self._propagator = propagator or propagate.get_global_textmap()

    def sending(self, message: Message) -> tuple[Message, SendEnded]:
        """Begin the span of a send and put its context into the message."""
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes={
                **_attributes(message.topic, "send", message.tag, message.keys),
                "messaging.message.body.size": len(message.body),
                "messaging.rocketmq.message.type": "delay" if message.delay_level else "normal",
            },
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=trace.set_span_in_context(span))
        carrier = {name: value for name, value in carrier.items() if value}

        def ended(result: SendResult | None, error: BaseException | None) -> None:
            if result is not None:
                span.set_attribute("messaging.message.id", result.message_id)
                span.set_attribute(
                    "messaging.destination.partition.id",
                    f"{result.queue.broker_name}/{result.queue.queue_id}",
                )
            _end(span, error)

        return replace(message, properties={**message.properties, **carrier}), ended

    def consuming(self, group: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """Begin the span of a handler call and make it the current one."""
        first = messages[0]
        contexts = [self._propagator.extract(message.properties) for message in messages]
        attributes: dict[str, str | int | tuple[str, ...]] = {
            **_attributes(first.topic, "process", first.tag, first.keys),
            "messaging.consumer.group.name": group,
        }
        if len(messages) == 1:
            attributes["messaging.message.id"] = first.message_id
            attributes["messaging.message.body.size"] = len(first.body)
            attributes["messaging.destination.partition.id"] = (
                f"{first.queue.broker_name}/{first.queue.queue_id}"
            )
            attributes["messaging.rocketmq.message.delivery_attempt"] = first.reconsume_times + 1
            span = self._tracer.start_span(
                f"process {first.topic}", context=contexts[0], kind=SpanKind.CONSUMER, attributes=attributes
            )
        else:
            attributes["messaging.batch.message_count"] = len(messages)
            sent = [get_current_span(context).get_span_context() for context in contexts]
            span = self._tracer.start_span(
                f"process {first.topic}",
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=[Link(each) for each in sent if each.is_valid],
            )
        token = otel_context.attach(trace.set_span_in_context(span))

        def ended(error: BaseException | None) -> None:
            otel_context.detach(token)
            _end(span, error)

        return ended


def _attributes(
    topic: str, operation: str, tag: str | None, keys: tuple[str, ...]
) -> dict[str, str | int | tuple[str, ...]]:
    attributes: dict[str, str | int | tuple[str, ...]] = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if tag:
        attributes["messaging.rocketmq.message.tag"] = tag
    if keys:
        attributes["messaging.rocketmq.message.keys"] = keys
    return attributes


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
