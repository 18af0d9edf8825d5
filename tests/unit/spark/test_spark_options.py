"""The source's options: what is taken, what is refused and with which words."""

from __future__ import annotations

import pytest

from aerobee.errors import ConfigError
from aerobee.message import MessageQueue
from aerobee.spark.offsets import EARLIEST, LATEST, from_table, parse_offsets, to_table
from aerobee.spark.options import READ_GROUP, SourceOptions, parse_source_options

BASE = {"nameservers": "127.0.0.1:9876", "subscribe": "orders"}


def parsed(streaming: bool = False, **options: str) -> SourceOptions:
    return parse_source_options({**BASE, **options}, streaming=streaming)


def test_defaults_are_kafkas():
    batch, stream = parsed(), parsed(streaming=True)
    assert batch.start.offsets == EARLIEST
    assert stream.start.offsets == LATEST
    assert batch.end.offsets == LATEST
    assert batch.fail_on_data_loss
    assert stream.trigger_delay_max_ms == 15 * 60 * 1000
    assert (batch.group, batch.reports_progress) == (READ_GROUP, False)


def test_spark_hands_names_over_in_lower_case():
    assert parsed(maxoffsetspertrigger="5", failondataloss="False").offsets_per_trigger_max == 5


def test_a_group_reports_progress_and_a_prefix_does_not():
    assert (parsed(group="jobs").group, parsed(group="jobs").reports_progress) == ("jobs", True)
    assert parsed(groupIdPrefix="etl").group == "etl-source"
    assert not parsed(groupIdPrefix="etl").reports_progress


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("30 s", 30_000), ("500ms", 500), ("7", 7), ("2h", 7_200_000)]
)
def test_durations(text: str, ms: int):
    assert parsed(maxTriggerDelay=text).trigger_delay_max_ms == ms


def test_the_client_is_set_by_what_begins_with_rocketmq():
    made = parsed(
        **{"rocketmq.tls": "true", "rocketmq.tls_ca_file": "/ca.pem", "rocketmq.requestTimeoutS": "7.5"}
    )
    assert (made.client.tls, made.client.tls_ca_file, made.client.request_timeout_s) == (True, "/ca.pem", 7.5)


def test_an_assignment_names_brokers():
    made = parse_source_options(
        {"nameservers": "h:1", "assign": '{"orders": ["broker-a:1", "broker-b:0"]}'}, streaming=False
    )
    assert made.queues == (MessageQueue("orders", "broker-a", 1), MessageQueue("orders", "broker-b", 0))


def test_tags_and_sql_become_the_subscription():
    assert parsed(tags="A || B").subscription("orders").tags == {"A", "B"}
    sql = parsed(sql="price > 5").subscription("orders")
    assert (sql.expression_type, sql.expression) == ("SQL92", "price > 5")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribePattern": "o.*"}, "exactly one of"),
        ({"tags": "A", "sql": "a = 1"}, "exclude each other"),
        ({"sql": ""}, "sql is empty"),
        ({"startingOffsets": "latest"}, "is for streams"),
        ({"startingOffsets": '{"orders": {"broker-a:0": -1}}'}, "is for streams"),
        ({"endingOffsets": "earliest"}, "before it begins"),
        ({"startingOffsets": "soon"}, "not JSON"),
        ({"startingOffsets": "[" * 100_000}, "not JSON"),
        (
            {"rocketmq.clientIp": "a", "rocketmq.client_ip": "b"},
            "rocketmq.client_ip and rocketmq.clientip are one",
        ),
        ({"startingOffsets": '{"orders": {"0": 1}}'}, "broker:id"),
        ({"startingOffsets": '{"orders": {"broker-a:0": -3}}'}, "from -2 to 9223372036854775807"),
        ({"startingOffsets": f'{{"orders": {{"broker-a:0": {2**63}}}}}'}, "from -2 to 9223372036854775807"),
        ({"startingOffsets": f'{{"orders": {{"broker-a:0": {"9" * 5_000}}}}}'}, "not JSON"),
        ({"endingOffsets": f'{{"orders": {{"broker-a:0": {10**400}}}}}'}, "from -2 to 9223372036854775807"),
        ({"startingOffsetsByTimestamp": f'{{"orders": {{"broker-a:0": {2**63}}}}}'}, "from -2 to"),
        ({"minPartitions": str(10**12)}, "from 1 to 100000"),
        ({"minPartitions": "100001"}, "from 1 to 100000"),
        ({"maxRecordsPerPartition": str(10**30)}, "from 1 to"),
        ({"startingTimestamp": "yesterday"}, "whole number"),
        ({"maxOffsetsPerTrigger": "0"}, "from 1 on"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "above maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "write a number"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"group": "a", "groupIdPrefix": "b"}, "exclude each other"),
        ({"maxOfsetsPerTrigger": "5"}, "maxofsetspertrigger is not known"),
        ({"rocketmq.colour": "red"}, "rocketmq.colour is not known"),
        ({"rocketmq.tlsCaFile": "/x"}, "no effect without tls"),
        ({"nameservers": ""}, "nameservers is missing"),
        ({"nameservers": "here"}, "nameservers"),
        ({"pullBatchSize": "2000"}, "from 1 to 1024"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(options: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words):
        parsed(**options)


def test_a_stream_has_no_end():
    with pytest.raises(ConfigError, match="a stream has no end"):
        parsed(streaming=True, endingOffsets="latest")


def test_offsets_survive_the_checkpoint():
    offsets = {MessageQueue("b", "broker-b", 0): 7, MessageQueue("a", "x:y", 3): 0}
    assert from_table(to_table(offsets)) == offsets
    assert parse_offsets('{"a": {"x:y:3": -2}}', what="o") == {MessageQueue("a", "x:y", 3): EARLIEST}
