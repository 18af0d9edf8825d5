"""Spans and metrics of sends, receives, handler calls and acknowledgements, joined by the context in message properties.

    telemetry = OpenTelemetry()
    Producer(..., observers=[telemetry])
    PushConsumer(..., observers=[telemetry])

| operation | span | context |
|---|---|---|
| send() | `send TOPIC`, PRODUCER | is put into the message |
| send_batch() | `create TOPIC` for each message, PRODUCER; `send TOPIC`, CLIENT, with a link to each | of `create`, into its message |
| a handler call | `process TOPIC`, CONSUMER, current while the handler runs | child of the send, with a link; several messages: links |
| poll(), receive() | `receive TOPIC`, CLIENT; none for a call without messages | links |
| ack(), change_invisible(), dead_letter() | `ack TOPIC`, CLIENT | links |

The properties are those of the configured propagator, `traceparent` and `tracestate` by default, which OpenTelemetry's
instrumentation of RocketMQ's Java clients reads and writes, too. A message of a gRPC client may have its `traceparent` in the
field trace_context instead: brokers store it in the property TRACE_CONTEXT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter, time_ns

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.metrics import MeterProvider, NoOpMeter, get_meter
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    Link,
    NoOpTracer,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
)

from aerobee.client.base.observer import ConsumeEnded, ReceiveEnded, SendBatchEnded, SendEnded
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.results import SendResult
from aerobee.contrib.opentelemetry.attributes import (
    BATCH_MESSAGE_COUNT,
    ERROR_TYPE,
    MESSAGE_ID,
    PARTITION_ID,
    SCHEMA_URL,
    SERVER_ADDRESS,
    SERVER_PORT,
    Attributes,
    of_message,
    of_received,
    operation,
    span_name,
)
from aerobee.contrib.opentelemetry.metrics import Metrics
from aerobee.errors import AerobeeError
from aerobee.message import Message, parse_offset_message_id

INSTRUMENTATION = "aerobee"
TRACEPARENT, TRACE_CONTEXT = "traceparent", "TRACE_CONTEXT"


class OpenTelemetry:
    """An observer of producers and consumers (aerobee/client/base/observer.py). Uses the global providers and propagator by default."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(
            INSTRUMENTATION, tracer_provider=tracer_provider, schema_url=SCHEMA_URL
        )
        self._metrics = Metrics(
            get_meter(INSTRUMENTATION, meter_provider=meter_provider, schema_url=SCHEMA_URL)
        )
        self._propagator = propagator or propagate.get_global_textmap()

    def disable(self) -> None:
        """Record nothing more, also for clients that have this observer."""
        self._tracer = NoOpTracer()
        self._metrics = Metrics(NoOpMeter(INSTRUMENTATION))

    # sends

    def sending(self, message: Message) -> tuple[Message, SendEnded]:
        """Begin the span of a send and put its context into the message."""
        attributes = operation("send", "send", [message.topic])
        span = self._tracer.start_span(
            span_name(attributes), kind=SpanKind.PRODUCER, attributes={**attributes, **of_message(message)}
        )
        end = self._timed(attributes, span, 1)

        def ended(result: SendResult | None, error: BaseException | None) -> None:
            if result is not None:
                span.set_attributes(_of_result(result))
                attributes.update(_server_of(result))
            end(error)

        return self._with_context(message, span), ended

    def sending_batch(self, messages: Sequence[Message]) -> tuple[Sequence[Message], SendBatchEnded]:
        """Begin the span of a batch, with a link to the span that creates each message."""
        created, with_context = [], []
        for message in messages:
            attributes = operation("create", "create", [message.topic])
            span = self._tracer.start_span(
                span_name(attributes),
                kind=SpanKind.PRODUCER,
                attributes={**attributes, **of_message(message)},
            )
            with_context.append(self._with_context(message, span))
            created.append(span)
        attributes = operation("send", "send", [message.topic for message in messages])
        sent = self._tracer.start_span(
            span_name(attributes),
            kind=SpanKind.CLIENT,
            attributes={**attributes, BATCH_MESSAGE_COUNT: len(messages)},
            links=_links(span.get_span_context() for span in created),
        )
        end = self._timed(attributes, sent, len(messages))

        def ended(results: Sequence[SendResult | None], error: BaseException | None) -> None:
            for span, result in zip(created, results, strict=True):
                if result is not None:
                    span.set_attributes(_of_result(result))
                span.end()
            end(error)

        return with_context, ended

    def _with_context(self, message: Message, span: Span) -> Message:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=trace.set_span_in_context(span))
        found = {name: value for name, value in carrier.items() if value}
        return replace(message, properties={**message.properties, **found}) if found else message

    # consumers

    def consuming(self, group: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """Begin the span of a handler call and make it the current one."""
        attributes = operation("process", "process", [message.topic for message in messages], group)
        context = self._context_of(messages[0]) if len(messages) == 1 else None
        span = self._tracer.start_span(
            span_name(attributes),
            context=context,
            kind=SpanKind.CONSUMER,
            attributes={**attributes, **_of_messages(messages)},
            links=self._links_to(messages),
        )
        if len(messages) == 1:
            attributes[SERVER_ADDRESS], attributes[SERVER_PORT] = messages[0].store_host
        token = otel_context.attach(trace.set_span_in_context(span))
        end = self._timed(attributes, span, len(messages))

        def ended(error: BaseException | None) -> None:
            otel_context.detach(token)
            end(error)

        return ended

    @contextmanager
    def processing(self, group: str, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> Iterator[None]:
        """A block in which the application processes messages of poll() or receive(): a span as of a handler call."""
        ended = self.consuming(group, [messages] if isinstance(messages, ReceivedMessage) else messages)
        try:
            yield
        except BaseException as error:
            ended(error)
            raise
        ended(None)

    def receiving(self, group: str) -> ReceiveEnded:
        """A receive begins. Its span is made at its end, when the messages are known."""
        began_ns, began = time_ns(), perf_counter()

        def ended(messages: Sequence[ReceivedMessage], error: BaseException | None) -> None:
            attributes = operation("receive", "receive", [message.topic for message in messages], group)
            span = self._tracer.start_span(
                span_name(attributes),
                kind=SpanKind.CLIENT,
                attributes={**attributes, BATCH_MESSAGE_COUNT: len(messages)},
                links=self._links_to(messages),
                start_time=began_ns,
            )
            self._timed(attributes, span, len(messages), began)(error)

        return ended

    def settling(self, group: str, name: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """Begin the span of a call that acknowledges or gives back messages."""
        attributes = operation("settle", name, [message.topic for message in messages], group)
        span = self._tracer.start_span(
            span_name(attributes),
            kind=SpanKind.CLIENT,
            attributes={**attributes, **_of_messages(messages)},
            links=self._links_to(messages),
        )
        return self._timed(attributes, span, len(messages))

    def _timed(
        self, attributes: Attributes, span: Span, count: int, began: float | None = None
    ) -> Callable[[BaseException | None], None]:
        """The end of an operation: of its span and of its duration."""
        started = perf_counter() if began is None else began
        metrics = self._metrics

        def ended(error: BaseException | None) -> None:
            measured = dict(attributes)
            if error is not None:
                measured[ERROR_TYPE] = type(error).__qualname__
            metrics.ended(measured, perf_counter() - started, count)
            _end(span, error)

        return ended

    def _context_of(self, message: ReceivedMessage) -> otel_context.Context:
        properties = message.properties
        if TRACEPARENT not in properties and properties.get(TRACE_CONTEXT):
            properties = {**properties, TRACEPARENT: properties[TRACE_CONTEXT]}
        return self._propagator.extract(properties)

    def _links_to(self, messages: Sequence[ReceivedMessage]) -> list[Link]:
        return _links(get_current_span(self._context_of(each)).get_span_context() for each in messages)


def _links(contexts: Iterator[trace.SpanContext]) -> list[Link]:
    return [Link(context) for context in contexts if context.is_valid]


def _of_messages(messages: Sequence[ReceivedMessage]) -> Attributes:
    return of_received(messages[0]) if len(messages) == 1 else {BATCH_MESSAGE_COUNT: len(messages)}


def _of_result(result: SendResult) -> Attributes:
    queue = result.queue
    found: Attributes = {MESSAGE_ID: result.message_id, PARTITION_ID: f"{queue.broker_name}/{queue.queue_id}"}
    return {**found, **_server_of(result)}


def _server_of(result: SendResult) -> Attributes:
    """The broker's address; nothing when the id does not contain one."""
    try:
        (host, port), _ = parse_offset_message_id(result.offset_message_id)
    except AerobeeError:
        return {}
    return {SERVER_ADDRESS: host, SERVER_PORT: port}


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_attribute(ERROR_TYPE, type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
