"""Offsets of queues as JSON, the form of options and of Spark's checkpoint. Core.

    {"orders": {"broker-a:0": 23, "broker-a:1": 7}, "returns": {"broker-b:0": -2}}

A queue is "broker:id", because ids are unique only within a broker. In options -2 is the earliest and -1 the
latest offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aerobee.errors import ConfigError
from aerobee.message import MessageQueue
from aerobee.remoting.protocol import OFFSET_MAX

EARLIEST = -2
LATEST = -1

Offsets = dict[MessageQueue, int]
OffsetTable = dict[str, dict[str, int]]  # key in Spark's checkpoint


def queue_name(queue: MessageQueue) -> str:
    """ "broker:id" of a queue."""
    return f"{queue.broker_name}:{queue.queue_id}"


def parse_queue(topic: str, text: str) -> MessageQueue:
    """Reverse queue_name. Raises ConfigError when the text is none."""
    broker, separator, number = text.rpartition(":")
    if not separator or not broker or not (number.isascii() and number.isdigit() and len(number) < 7):
        raise ConfigError(f'queue {text!r} of topic {topic}: write "broker:id", as "broker-a:0"')
    return MessageQueue(topic, broker, int(number))


def to_table(offsets: Mapping[MessageQueue, int]) -> OffsetTable:
    """Offsets in the form of Spark's checkpoint, sorted, so that equal offsets have equal text."""
    table: OffsetTable = {}
    for queue in sorted(offsets):
        table.setdefault(queue.topic, {})[queue_name(queue)] = offsets[queue]
    return table


def from_table(table: Mapping[str, Any], *, what: str = "offsets") -> Offsets:
    """Reverse to_table. Raises ConfigError, naming `what`, for anything else."""
    offsets: Offsets = {}
    for topic, queues in table.items():
        if not isinstance(queues, Mapping):
            raise ConfigError(f'{what}: topic {topic!r} has {queues!r}, not {{"broker:id": offset}}')
        for name, offset in queues.items():
            if (
                not isinstance(offset, int)
                or isinstance(offset, bool)
                or not EARLIEST <= offset <= OFFSET_MAX
            ):
                raise ConfigError(
                    f"{what}: {topic} {name} has {offset!r:.100}: it must be a whole number from -2 to {OFFSET_MAX}"
                )
            offsets[parse_queue(topic, name)] = offset
    return offsets


def parse_offsets(text: str, *, what: str) -> Offsets:
    """Offsets out of the JSON of an option. Raises ConfigError, naming the option `what`."""
    return from_table(_object(text, what), what=what)


def parse_assignment(text: str) -> tuple[MessageQueue, ...]:
    """Queues of the option `assign`: {"topic": ["broker:id", ...]}. Raises ConfigError."""
    queues: list[MessageQueue] = []
    for topic, names in _object(text, "assign").items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f'assign: topic {topic!r} has {names!r}, not ["broker:id", ...]')
        queues.extend(parse_queue(topic, name) for name in names)
    if not queues:
        raise ConfigError("assign names no queue")
    return tuple(sorted(set(queues)))


def named(queues: Iterable[MessageQueue]) -> str:
    """At most eight of the queues, as text for messages."""
    every = [f"{queue.topic} {queue_name(queue)}" for queue in sorted(queues)]
    return ", ".join(every[:8]) + (f" and {len(every) - 8} more" if len(every) > 8 else "")


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} is {text!r:.1000}: not JSON, {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is {text!r:.1000}: an object by topic was expected")
    return value
