"""Requests to a master and reads of its promoted replica."""

from __future__ import annotations

from aerobee.broker.assembly.broker import Broker
from aerobee.message import Record, decode_record

HALF = 4  # sys flag


def stored(broker: Broker, topic: str) -> list[Record]:
    """What consumers may see of a topic's first queue."""
    found = []
    for offset in range(broker.store.max_offset(topic, 0)):
        entry = broker.store.queue(topic, 0).entry(offset)
        assert isinstance(entry, tuple)
        data = broker.store.read_record(entry[0])
        assert data is not None
        found.append(decode_record(data))
    return found


def keys(broker: Broker, topic: str) -> list[str]:
    return [record.properties["UNIQ_KEY"] for record in stored(broker, topic)]
