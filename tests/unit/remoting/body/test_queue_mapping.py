"""The mapping of a static topic's queues: its JSON in both dialects, the logical queues that follow, offsets both ways."""

from __future__ import annotations

import pytest

from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting.body.queue_mapping import (
    LOGICAL_BROKER_NONE,
    QueueMapping,
    QueueMappingInfo,
    QueueMappingItem,
    find_item,
    logical_broker,
    logical_queues,
    next_item,
)

# As mqadmin of RocketMQ 5.5.0 sends it: bare integer keys.
FROM_MQADMIN = (
    b'{"bname":"broker-a","currIdMap":{},"dirty":false,"epoch":1700000001000,"hostedQueues":{0:[{"bname":"broker-a",'
    b'"endOffset":-1,"gen":0,"logicOffset":0,"queueId":0,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}],3:[{"bname":'
    b'"broker-a","endOffset":-1,"gen":0,"logicOffset":0,"queueId":1,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1},'
    b'{"bname":"broker-b","endOffset":-1,"gen":1,"logicOffset":-1,"queueId":2,"startOffset":0,"timeOfEnd":-1,'
    b'"timeOfStart":-1}]},"scope":"__global__","topic":"orders","totalQueues":4}'
)
OLD = QueueMappingItem(0, 1, "broker-a", 0)
NEW = QueueMappingItem(1, 2, "broker-b", 20_000)


def test_what_mqadmin_sends_is_read_and_says_who_leads() -> None:
    mapping = QueueMapping.decode(FROM_MQADMIN)
    assert (mapping.topic, mapping.total_queues, mapping.broker_name, mapping.epoch) == (
        "orders",
        4,
        "broker-a",
        1_700_000_001_000,
    )
    assert mapping.hosted[3] == (OLD, QueueMappingItem(1, 2, "broker-b", -1))
    assert mapping.led() == {0: 0}
    assert QueueMapping.from_dict(mapping.to_dict()) == mapping
    assert QueueMappingInfo.from_dict(mapping.to_info()).led == {0: 0}


@pytest.mark.parametrize(
    "body",
    [
        b'{"topic":"t","totalQueues":-1,"bname":"b"}',
        b'{"topic":"t","totalQueues":1,"bname":"b","hostedQueues":{"0":[]}}',
        b'{"topic":"t","totalQueues":1,"bname":"b","hostedQueues":{"-1":[{"bname":"b"}]}}',
        b'{"topic":"t","totalQueues":1,"bname":"b","hostedQueues":{"0":[7]}}',
        b'{"topic":"t","totalQueues":100000,"bname":"b"}',
        b"[]",
    ],
)
def test_what_is_no_mapping_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        QueueMapping.decode(body)


def test_an_offset_belongs_to_the_last_part_that_begins_before_it() -> None:
    items = (OLD, NEW)
    assert [find_item(items, offset) for offset in (0, 19_999, 20_000, 1 << 62)] == [OLD, OLD, NEW, NEW]
    undecided = QueueMappingItem(2, 5, "broker-c", -1)
    assert find_item((OLD, NEW, undecided), 1 << 62) == NEW
    assert find_item((undecided,), 0) is None
    assert (next_item((OLD, NEW), OLD), next_item((OLD, NEW), NEW)) == (NEW, None)
    assert next_item((OLD, undecided), OLD) is None


def test_offsets_translate_both_ways() -> None:
    assert NEW.logical(5) == 20_005
    assert NEW.physical(20_005) == 5
    assert NEW.physical(19_000) < 0
    moved = QueueMappingItem(1, 2, "b", 1_000, start_offset=10, end_offset=30)
    assert (moved.logical(15), moved.logical(3), moved.physical(1_005)) == (1_005, 1_000, 15)
    assert (moved.loosely_logical(99), moved.logic_end) == (1_020, 1_020)
    assert QueueMappingItem(1, 2, "b", -1).loosely_logical(7) == -1


def test_the_highest_epoch_names_the_leader() -> None:
    infos = (
        QueueMappingInfo("t", 3, "broker-b", 2_000, led={1: 0}),
        QueueMappingInfo("t", 2, "broker-a", 1_000, led={0: 0, 1: 1}),
    )
    name = logical_broker("__global__")
    assert name == "__syslo__global__"
    assert logical_queues("t", infos) == {
        MessageQueue("t", name, 0): "broker-a",
        MessageQueue("t", name, 1): "broker-b",
        MessageQueue("t", name, 2): LOGICAL_BROKER_NONE,
    }
    assert logical_queues("t", ()) == {}
