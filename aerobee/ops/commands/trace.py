"""`aerobee trace`: trace of a message, as its producer and consumers recorded it (trace=True, RMQ_SYS_TRACE_TOPIC)."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from aerobee.client.base.trace_record import ConsumeOutcome, TracedType, TraceEvent, TraceKind
from aerobee.clock import MS_PER_DAY
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, NameServers
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_ms, moment_text
from aerobee.system_names import TRACE_TOPIC


def register(app: typer.Typer) -> None:
    app.command("trace")(trace)


def trace(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Unique key of the message, or one of its keys.")
    ],
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", help="Topic to which the clients write their traces.")
    ] = TRACE_TOPIC,
    since: Annotated[
        str | None, typer.Option("--since", help="Recorded after this time (2026-11-21T10:00, 15m).")
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show when and by which client a message was sent and consumed, how long it took, and the result."""
    out = Output(as_json)
    now_ms = time.time_ns() // 1_000_000
    begin_ms = moment_ms(since, now_ms) if since else 0

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            events = await admin.trace(
                message_id, trace_topic=trace_topic, begin_ms=begin_ms, end_ms=now_ms + MS_PER_DAY
            )
        if not events:
            raise NotFound(
                f"topic {trace_topic} has no trace of {message_id}: clients record traces only with trace=True "
                "(Java: enableMsgTrace), and the records arrive some seconds after the event"
            )
        if as_json:
            out.document([event_document(event) for event in events])
            return
        first = events[0].time_ms
        out.table(
            [
                {
                    "time": moment_text(event.time_ms),
                    "after": f"+{event.time_ms - first} ms" if event.time_ms else "-",
                    "what": what_text(event),
                    "group": event.group,
                    "client": event.client_host,
                    "message": event.message_id,
                }
                for event in events
            ],
            {
                "time": "time",
                "after": "since first",
                "what": "what",
                "group": "group",
                "client": "client",
                "message": "message id",
            },
            empty="",
        )

    run(command)


def event_document(event: TraceEvent) -> dict[str, Any]:
    """One record as JSON: the fields of its kind, and a description in `what`."""
    document: dict[str, Any] = {
        "kind": event.kind.value,
        "time": event.time_ms,
        "message_id": event.message_id,
        "group": event.group,
        "client_host": event.client_host,
        "what": what_text(event),
    }
    if event.kind is TraceKind.SUB_BEFORE:
        return document | {"request_id": event.request_id, "retry_times": event.retry_times}
    if event.kind is TraceKind.SUB_AFTER:
        return document | {
            "request_id": event.request_id,
            "cost_ms": event.cost_ms,
            "success": event.success,
            "context_code": event.context_code,
        }
    document |= {"topic": event.topic, "region": event.region}
    if event.kind is TraceKind.RECALL:
        return document | {"success": event.success}
    document |= {"tags": event.tags, "keys": event.keys, "store_host": event.store_host}
    if event.kind is TraceKind.END_TRANSACTION:
        return document | {
            "transaction_id": event.transaction_id,
            "transaction_state": event.transaction_state,
            "from_check": event.from_check,
        }
    return document | {
        "body_bytes": event.body_bytes,
        "cost_ms": event.cost_ms,
        "message_type": event.message_type,
        "offset_message_id": event.offset_message_id,
        "success": event.success,
    }


def what_text(event: TraceEvent) -> str:
    """One record in words."""
    if event.kind is TraceKind.PUB:
        kind = _TYPE_TEXT.get(event.message_type, "")
        ended = (
            f"in {event.cost_ms} ms"
            if event.success
            else f"in {event.cost_ms} ms, stored less durably than required"
        )
        return f"sent {kind}to {event.topic} at {event.store_host or 'a broker'} {ended}"
    if event.kind is TraceKind.SUB_BEFORE:
        again = f", delivery {event.retry_times + 1}" if event.retry_times else ""
        return f"consumption started{again}"
    if event.kind is TraceKind.SUB_AFTER:
        if event.success:
            return f"consumed in {event.cost_ms} ms"
        return f"failed after {event.cost_ms} ms ({_OUTCOME_TEXT.get(event.context_code, 'unknown result')})"
    if event.kind is TraceKind.END_TRANSACTION:
        check = " after a check" if event.from_check else ""
        return f"transaction {event.transaction_id}: {event.transaction_state}{check}"
    return f"recalled from {event.topic}" if event.success else f"recall from {event.topic} failed"


_TYPE_TEXT: dict[int, str] = {
    TracedType.TRANSACTION_HALF: "as a half message ",
    TracedType.TRANSACTION_COMMIT: "as a commit ",
    TracedType.DELAY: "with a delay ",
    TracedType.ORDER: "in order ",
}
_OUTCOME_TEXT: dict[int, str] = {
    ConsumeOutcome.TIME_OUT: "the handler timed out",
    ConsumeOutcome.EXCEPTION: "the handler raised an error",
    ConsumeOutcome.RETURNED_NULL: "the handler returned nothing",
    ConsumeOutcome.FAILED: "the handler requested a redelivery",
}
