"""Message trace: a producer or consumer records in RMQ_SYS_TRACE_TOPIC what it did with each message (trace=True).

Follows AsyncTraceDispatcher, SendMessageTraceHookImpl and ConsumeMessageTraceHookImpl. Records collect and leave in one
message a second, or earlier when they fill 128,000 bytes. Trace never delays a message: when more than 2,048 records
wait, further ones are dropped and counted, and records that cannot be sent are lost with a warning. A broker with
TRACE_ON=false in its replies or messages is not traced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from aerobee.client.base.config import ClientConfig
from aerobee.client.base.observer import ConsumeEnded, SendEnded
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.results import SendResult, SendStatus
from aerobee.client.base.trace_record import (
    TRACE_GROUP,
    ConsumeOutcome,
    TracedType,
    TraceEvent,
    TraceKind,
    encode_event,
)
from aerobee.client.base.verdict import RetryLater
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError
from aerobee.host_port import join_address
from aerobee.message import Message, parse_offset_message_id
from aerobee.property_names import TIMER_DELAYS
from aerobee.system_names import TRACE_TOPIC

log = logging.getLogger(__name__)

EVENTS_MAX = 2048  # maximum number of waiting records; RocketMQ's asyncDispatcher queue
BODY_BYTES_MAX = 128_000  # of one trace message
KEYS_CHARS_MAX = 16_000  # of one trace message: properties may take 32,767 bytes
FLUSH_S = 1.0  # RocketMQ waits up to 5 s


class TraceSender(Protocol):
    """The sender of the trace messages: a separate Producer."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def send(self, message: Message) -> SendResult: ...


def trace_group(group: str, purpose: str) -> str:
    """The producer group of trace messages, as RocketMQ names it, within the length that groups may have."""
    return f"{TRACE_GROUP}-{group[:80]}-{purpose}"


def trace_client(client: ClientConfig | None) -> ClientConfig:
    """The trace sender's client settings: a fixed instance name gets a suffix, because client ids must differ."""
    config = client or ClientConfig()
    return replace(config, instance=f"{config.instance}#trace") if config.instance else config


class Tracer:
    """Collects and sends the records of one producer or consumer. A SendObserver and a ConsumeObserver."""

    def __init__(self, sender: TraceSender, *, group: str, clock: Clock, topic: str = TRACE_TOPIC) -> None:
        self._sender = sender
        self._group = group
        self._clock = clock
        self._topic = topic
        self._events: deque[TraceEvent] = deque()
        self._timer: Timer | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._requests = 0
        self.dropped_count = 0

    async def start(self) -> None:
        await self._sender.start()

    async def close(self) -> None:
        """Send the remaining records, then end."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._flushing is not None:
                await self._flushing
            await self._flush()
        finally:
            await self._sender.close()

    def record(self, event: TraceEvent) -> None:
        """Enqueue one record; it is dropped when too many wait."""
        if len(self._events) >= EVENTS_MAX:
            if not self.dropped_count:
                log.warning(
                    "group %s: trace records come faster than they are sent; some are dropped", self._group
                )
            self.dropped_count += 1
            return
        self._events.append(event)
        if self._timer is None:
            self._timer = self._clock.call_later(FLUSH_S, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush(), name="client-trace")
        else:
            self._timer = self._clock.call_later(FLUSH_S, self._due)

    async def _flush(self) -> None:
        while self._events:
            message = self._next_message()
            try:
                await self._sender.send(message)
            except AerobeeError as error:
                log.warning("trace of group %s is lost: %s", self._group, error)

    def _next_message(self) -> Message:
        """Take the records that fit one message."""
        parts: list[str] = []
        keys: dict[str, None] = {}
        size = key_size = 0
        while self._events:
            event = self._events[0]
            text = encode_event(event)
            new_keys = {key for key in sorted(event.index_keys) if key not in keys}
            more = len(text.encode(errors="replace"))
            more_keys = sum(len(key) + 1 for key in new_keys)
            if parts and (size + more > BODY_BYTES_MAX or key_size + more_keys > KEYS_CHARS_MAX):
                break
            self._events.popleft()
            parts.append(text)
            keys.update(dict.fromkeys(sorted(new_keys)))
            size += more
            key_size += more_keys
        return Message(self._topic, "".join(parts).encode(errors="replace"), keys=tuple(keys))

    # as an observer

    def sending(self, message: Message) -> tuple[Message, SendEnded]:
        """A send begins; it is recorded when a broker has stored it."""
        began_ms, began = self._clock.now_ms(), self._clock.monotonic()

        def ended(result: SendResult | None, error: BaseException | None) -> None:
            if result is None or not result.trace_on:
                return
            self.record(
                TraceEvent(
                    kind=TraceKind.PUB,
                    time_ms=began_ms,
                    region=result.region_id,
                    group=self._group,
                    topic=message.topic,
                    message_id=result.message_id,
                    tags=message.tag or "",
                    keys=" ".join(message.keys),
                    store_host=_store_host(result.offset_message_id),
                    body_bytes=len(message.body),
                    cost_ms=round((self._clock.monotonic() - began) * 1000),
                    message_type=_type_of(message),
                    offset_message_id=result.offset_message_id,
                    success=result.status is SendStatus.SEND_OK,
                )
            )

        return message, ended

    def consuming(self, group: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """A handler begins with these messages."""
        began = self._clock.monotonic()
        self._requests += 1
        request_id = f"{self._clock.now_ms():X}{id(self) & 0xFFFFFFFF:08X}{self._requests:08X}"
        traced = [message for message in messages if message.properties.get("TRACE_ON") != "false"]
        for message in traced:
            self.record(
                TraceEvent(
                    kind=TraceKind.SUB_BEFORE,
                    time_ms=self._clock.now_ms(),
                    region=message.properties.get("MSG_REGION", ""),
                    group=group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=" ".join(message.keys),
                )
            )

        def ended(error: BaseException | None) -> None:
            cost_ms = round((self._clock.monotonic() - began) * 1000 / max(1, len(messages)))
            for message in traced:
                self.record(
                    TraceEvent(
                        kind=TraceKind.SUB_AFTER,
                        request_id=request_id,
                        message_id=message.message_id,
                        cost_ms=cost_ms,
                        success=error is None,
                        keys=" ".join(message.keys),
                        context_code=_outcome(error),
                        time_ms=self._clock.now_ms(),
                        group=group,
                    )
                )

        return ended


def _outcome(error: BaseException | None) -> ConsumeOutcome:
    if error is None:
        return ConsumeOutcome.SUCCESS
    return ConsumeOutcome.FAILED if isinstance(error, RetryLater) else ConsumeOutcome.EXCEPTION


def _type_of(message: Message) -> TracedType:
    if message.delay_level or any(name in message.properties for name in TIMER_DELAYS):
        return TracedType.DELAY
    if message.properties.get("TRAN_MSG") == "true":
        return TracedType.TRANSACTION_HALF
    return TracedType.NORMAL


def _store_host(offset_message_id: str) -> str:
    """ "ip:port" of the broker; empty when the id does not contain one (several messages, or none)."""
    try:
        (ip, port), _ = parse_offset_message_id(offset_message_id)
    except AerobeeError:
        return ""
    return join_address(ip, port)
