"""Counts that others wrote as text: however many digits they have, they are a small number or none."""

from __future__ import annotations

import json

import pytest

from aerobee.client.base.received import decode_stored_messages
from aerobee.client.base.topic_route import TopicRoute, parse_route, publish_queues
from aerobee.client.consumer.dead_letter import DeadLetter
from aerobee.errors import MalformedFrame
from aerobee.message import encode_properties, encode_record, pack_host

MANY = "9" * 5000  # more than int() takes


@pytest.mark.parametrize("count", [MANY, "999999", "²", "-1", ""])
def test_an_order_config_with_no_sensible_count_is_malformed(count: str) -> None:
    with pytest.raises(MalformedFrame, match="broker:count was expected"):
        publish_queues(TopicRoute("T", (), (), f"broker-a:{count}"))


@pytest.mark.parametrize(("text", "tries", "redriven"), [(MANY, 3, "1"), ("²", 3, "1"), ("16", 16, "17")])
def test_a_dead_letters_counts_are_numbers_or_are_not_told(text: str, tries: int, redriven: str) -> None:
    host = pack_host("127.0.0.1", 10911)
    record = encode_record(
        topic=b"%DLQ%g",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=b"dead",
        properties=encode_properties({"DLQ_TRIES": text, "REDRIVE_COUNT": text}).encode(),
        born_host=host,
        store_host=host,
        reconsume_times=3,
    )
    dead_letter = DeadLetter("g", decode_stored_messages(record, "broker-a")[0])
    assert dead_letter.tries == tries
    assert dead_letter.redriven_properties()["REDRIVE_COUNT"] == redriven


@pytest.mark.parametrize("field", ["readQueueNums", "writeQueueNums"])
def test_a_route_with_no_sensible_number_of_queues_is_malformed(field: str) -> None:
    queues = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4, field: 100_000}
    body = json.dumps({"brokerDatas": [], "queueDatas": [queues]}).encode()
    with pytest.raises(MalformedFrame, match="at most 99999"):
        parse_route("T", body)
