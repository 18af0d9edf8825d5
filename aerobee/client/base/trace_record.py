"""Records of message trace: what happened to a message, as text in the body of messages to RMQ_SYS_TRACE_TOPIC. Core.

Source: TraceDataEncoder (RocketMQ, the format of 4.x, which 5.x still writes). Records end in 0x02, fields in between
are separated by 0x01. The first field says what kind it is; [fields in brackets] are missing in older releases:

    Pub             time, region, group, topic, message id, tags, keys, store host, body bytes, cost ms, message type,
                    [offset message id], success
    SubBefore       time, region, group, request id, message id, retry times, keys
    SubAfter        request id, message id, cost ms, success, keys, [context code, time, group]
    EndTransaction  time, region, group, topic, message id, tags, keys, store host, message type, transaction id,
                    state, from check
    Recall          time, region, group, topic, message id, success

A SubBefore and its SubAfter share the request id. KEYS of the trace message holds the ids and keys of all its records,
so that the index finds them by either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum

TRACE_GROUP = "_INNER_TRACE_PRODUCER"
FIELD, RECORD = "\x01", "\x02"


class TraceKind(Enum):
    """Kinds of records; the values are the text of the first field."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class TracedType(IntEnum):
    """The ordinal of MessageType in RocketMQ."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeOutcome(IntEnum):
    """The ordinal of ConsumeReturnType in RocketMQ: the context code of SubAfter."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One record. Fields that its kind does not have keep their defaults. `time_ms` 0: the record has no time.

    `group` is the producer group of Pub, EndTransaction and Recall, else the consumer group. `client_host` is where the
    trace message came from.
    """

    kind: TraceKind
    message_id: str
    time_ms: int = 0
    region: str = ""
    group: str = ""
    topic: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    client_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    message_type: int = TracedType.NORMAL
    offset_message_id: str = ""
    success: bool = True
    request_id: str = ""
    retry_times: int = 0
    context_code: int = 0
    transaction_id: str = ""
    transaction_state: str = ""
    from_check: bool = False

    @property
    def index_keys(self) -> set[str]:
        """Keys by which the index finds the trace message."""
        return {self.message_id, *self.keys.split()} - {""}


def encode_event(event: TraceEvent) -> str:
    """One record with its end mark. A field that holds a separator loses it."""
    kind = event.kind
    head = [event.time_ms, event.region, event.group]
    fields: list[object]
    if kind is TraceKind.PUB:
        fields = [
            *head, event.topic, event.message_id, event.tags, event.keys, event.store_host, event.body_bytes,
            event.cost_ms, int(event.message_type), event.offset_message_id, _flag(event.success),
        ]  # fmt: skip
    elif kind is TraceKind.SUB_BEFORE:
        fields = [*head, event.request_id, event.message_id, event.retry_times, event.keys]
    elif kind is TraceKind.SUB_AFTER:
        fields = [
            event.request_id, event.message_id, event.cost_ms, _flag(event.success), event.keys,
            int(event.context_code), event.time_ms, event.group,
        ]  # fmt: skip
    elif kind is TraceKind.END_TRANSACTION:
        fields = [
            *head, event.topic, event.message_id, event.tags, event.keys, event.store_host, int(event.message_type),
            event.transaction_id, event.transaction_state, _flag(event.from_check),
        ]  # fmt: skip
    else:
        fields = [*head, event.topic, event.message_id, _flag(event.success)]
    texts = [str(field).replace(FIELD, " ").replace(RECORD, " ") for field in fields]
    return FIELD.join([kind.value, *texts]) + RECORD


def decode_events(body: bytes, client_host: str = "") -> list[TraceEvent]:
    """The records of one trace message. Records of unknown kinds and truncated records are skipped; the others are
    returned."""
    events: list[TraceEvent] = []
    for text in body.decode(errors="replace").split(RECORD):
        fields = text.split(FIELD)
        decode = _DECODERS.get(fields[0])
        if decode is None:
            continue
        try:
            events.append(decode(fields, client_host))
        except (IndexError, ValueError):
            continue
    return events


def _pub(f: list[str], host: str) -> TraceEvent:
    has_offset_id = len(f) >= 14
    return TraceEvent(
        kind=TraceKind.PUB, time_ms=int(f[1]), region=f[2], group=f[3], topic=f[4], message_id=f[5], tags=f[6],
        keys=f[7], store_host=f[8], body_bytes=int(f[9]), cost_ms=int(f[10]), message_type=int(f[11]),
        offset_message_id=f[12] if has_offset_id else "", success=f[13 if has_offset_id else 12] == "true",
        client_host=f[14] if len(f) > 14 else host,
    )  # fmt: skip


def _sub_before(f: list[str], host: str) -> TraceEvent:
    return TraceEvent(
        kind=TraceKind.SUB_BEFORE, time_ms=int(f[1]), region=f[2], group=f[3], request_id=f[4], message_id=f[5],
        retry_times=int(f[6]), keys=f[7] if len(f) > 7 else "", client_host=f[8] if len(f) > 8 else host,
    )  # fmt: skip


def _sub_after(f: list[str], host: str) -> TraceEvent:
    return TraceEvent(
        kind=TraceKind.SUB_AFTER, request_id=f[1], message_id=f[2], cost_ms=int(f[3]), success=f[4] == "true",
        keys=f[5] if len(f) > 5 else "", context_code=int(f[6]) if len(f) > 6 and f[6] else 0,
        time_ms=int(f[7]) if len(f) > 7 and f[7] else 0, group=f[8] if len(f) > 8 else "", client_host=host,
    )  # fmt: skip


def _end_transaction(f: list[str], host: str) -> TraceEvent:
    return TraceEvent(
        kind=TraceKind.END_TRANSACTION, time_ms=int(f[1]), region=f[2], group=f[3], topic=f[4], message_id=f[5],
        tags=f[6], keys=f[7], store_host=f[8], message_type=int(f[9]), transaction_id=f[10],
        transaction_state=f[11], from_check=f[12] == "true", client_host=host,
    )  # fmt: skip


def _recall(f: list[str], host: str) -> TraceEvent:
    return TraceEvent(
        kind=TraceKind.RECALL, time_ms=int(f[1]), region=f[2], group=f[3], topic=f[4], message_id=f[5],
        success=f[6] == "true", client_host=host,
    )  # fmt: skip


_DECODERS = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
    "EndTransaction": _end_transaction,
    "Recall": _recall,
}


def timeline(events: Iterable[TraceEvent], wanted: str) -> tuple[TraceEvent, ...]:
    """The events of one message id or key, ordered by time; a SubAfter without a time follows its SubBefore."""
    chosen = [event for event in events if wanted in event.index_keys]
    begun = {event.request_id: event.time_ms for event in chosen if event.kind is TraceKind.SUB_BEFORE}

    def moment(event: TraceEvent) -> tuple[int, int]:
        if event.kind is not TraceKind.SUB_AFTER:
            return event.time_ms, 0
        return event.time_ms or begun.get(event.request_id, 0) + event.cost_ms, 1

    return tuple(sorted(set(chosen), key=moment))


def _flag(value: bool) -> str:
    return "true" if value else "false"
