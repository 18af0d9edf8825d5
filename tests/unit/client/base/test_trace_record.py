"""Trace records: as RocketMQ writes them, both ways, and whatever else stands in a trace message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.client.base.trace_record import (
    TracedType,
    TraceEvent,
    TraceKind,
    decode_events,
    encode_event,
    timeline,
)
from aerobee.remoting.frame import decode_frame
from tests.captures import captured

PUB = TraceEvent(
    kind=TraceKind.PUB,
    time_ms=1_700_000_000_000,
    region="DefaultRegion",
    group="PG",
    topic="orders",
    message_id="A1",
    tags="paid",
    keys="k1 k2",
    store_host="127.0.0.1:10911",
    body_bytes=12,
    cost_ms=3,
    message_type=TracedType.DELAY,
    offset_message_id="0A",
    success=True,
)
BEFORE = TraceEvent(
    kind=TraceKind.SUB_BEFORE,
    time_ms=1_700_000_000_100,
    region="DefaultRegion",
    group="CG",
    request_id="R1",
    message_id="A1",
    retry_times=2,
    keys="k1 k2",
)
AFTER = TraceEvent(
    kind=TraceKind.SUB_AFTER,
    request_id="R1",
    message_id="A1",
    cost_ms=50,
    success=False,
    keys="k1 k2",
    context_code=4,
    time_ms=1_700_000_000_150,
    group="CG",
)
END = TraceEvent(
    kind=TraceKind.END_TRANSACTION,
    time_ms=1_700_000_000_010,
    region="DefaultRegion",
    group="PG",
    topic="orders",
    message_id="A1",
    tags="paid",
    keys="k1",
    store_host="127.0.0.1:10911",
    message_type=TracedType.TRANSACTION_COMMIT,
    transaction_id="A1",
    transaction_state="COMMIT_MESSAGE",
    from_check=True,
)
RECALL = TraceEvent(
    kind=TraceKind.RECALL,
    time_ms=1,
    region="r",
    group="PG",
    topic="orders",
    message_id="A1",
    success=False,
)


def test_the_captured_record_of_a_java_producer_reads_and_writes_the_same() -> None:
    frame = next(
        decode_frame(frame.data)
        for frame in captured("java-produce-trace")
        if frame.request_code == 310 and not frame.is_reply and b"RMQ_SYS_TRACE_TOPIC" in frame.data
    )
    (event,) = decode_events(frame.body)
    assert event.kind is TraceKind.PUB
    assert (event.message_id, event.topic, event.group, event.tags, event.keys) == (
        "0A0000013F9E4E0E2F2A67060C420027",
        "TopicNormal",
        "PG_trace",
        "tr",
        "traced",
    )
    assert (event.cost_ms, event.body_bytes, event.store_host, event.success) == (
        29,
        8,
        "127.0.0.2:20911",
        True,
    )
    assert encode_event(event).encode() == frame.body
    assert event.index_keys == {"0A0000013F9E4E0E2F2A67060C420027", "traced"}


@pytest.mark.parametrize("event", [PUB, BEFORE, AFTER, END, RECALL], ids=lambda event: event.kind.value)
def test_every_kind_survives_writing_and_reading(event: TraceEvent) -> None:
    assert decode_events(encode_event(event).encode()) == [event]


def test_records_of_older_clients_lack_fields() -> None:
    old_pub = "Pub\x011\x01r\x01PG\x01orders\x01A1\x01\x01\x0110.0.0.1:10911\x015\x012\x010\x01true\x02"
    old_after = "SubAfter\x01R1\x01A1\x017\x01true\x01k1\x02"
    pub, after = decode_events((old_pub + old_after).encode())
    assert (pub.success, pub.offset_message_id, pub.cost_ms) == (True, "", 2)
    assert (after.success, after.time_ms, after.group, after.cost_ms) == (True, 0, "", 7)


def test_separators_inside_a_field_cannot_break_a_record() -> None:
    (event,) = decode_events(
        encode_event(
            TraceEvent(kind=TraceKind.RECALL, message_id="A\x01B\x02C", time_ms=1, topic="t")
        ).encode()
    )
    assert event.message_id == "A B C"


def test_a_timeline_is_in_order_of_time_and_of_one_message_only() -> None:
    other = TraceEvent(kind=TraceKind.RECALL, message_id="B2", time_ms=5)
    late_after = TraceEvent(kind=TraceKind.SUB_AFTER, message_id="A1", request_id="R1", cost_ms=50)
    assert timeline([late_after, other, BEFORE, PUB, PUB], "A1") == (PUB, BEFORE, late_after)
    assert timeline([other, BEFORE, PUB], "k2") == (PUB, BEFORE)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_a_fault(body: bytes) -> None:
    for data in (body, b"Pub\x01" + body + b"\x02SubBefore\x01" + body + b"\x02SubAfter\x01" + body):
        for event in decode_events(data):
            assert isinstance(event.message_id, str)
            assert isinstance(event.time_ms, int)
