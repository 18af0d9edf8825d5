"""The client's two names: `message_group` orders, `keys` finds."""

from __future__ import annotations

import inspect

import pytest

from aerobee.client import Producer, SyncProducer, TransactionProducer
from aerobee.client.base.received import ReceivedMessage
from aerobee.message import Message, MessageQueue
from aerobee.spark.sink_options import COLUMN_TYPES

SENDS = ("send", "send_oneway", "request", "send_in_transaction", "transaction")


@pytest.mark.parametrize("kind", [Producer, SyncProducer, TransactionProducer])
def test_every_send_orders_by_message_group(kind: type) -> None:
    for name in SENDS:
        if method := getattr(kind, name, None):
            names = inspect.signature(method).parameters
            assert "message_group" in names, name
            assert "key" not in names, name


def test_the_spark_sink_orders_by_message_group() -> None:
    assert "message_group" in COLUMN_TYPES


def test_a_received_message_has_its_message_group() -> None:
    queue = MessageQueue("T", "b", 0)
    raw = b"__SHARDINGKEY\x01ann\x02KEYS\x01o-1 o-2\x02"
    received = ReceivedMessage("T", queue, 0, b"", raw, b"", 0, 0)
    assert (received.message_group, received.keys) == ("ann", ("o-1", "o-2"))
    assert ReceivedMessage("T", queue, 0, b"", b"", b"", 0, 0).message_group is None
    assert Message("T", b"", keys=("o-1",)).keys == ("o-1",)
