"""MessageQueue in JSON: an object, and an object as key of a map. Source: MessageQueue (RocketMQ)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields

Value = TypeVar("Value")


def queue_to_dict(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_dict(fields: json_fields.Fields) -> MessageQueue:
    return MessageQueue(
        json_fields.text(fields, "topic"),
        json_fields.text(fields, "brokerName"),
        json_fields.integer(fields, "queueId"),
    )


def queue_of_key(key: str) -> MessageQueue:
    """Read a key of a map as fastjson.loads() returns it: the queue's JSON text. Raises MalformedFrame."""
    return queue_from_dict(fastjson.loads_object(key.encode(), "the key of a queue map"))


def queue_map(fields: Mapping[str, Any]) -> Iterable[tuple[MessageQueue, Any]]:
    """Yield queue and value of each entry of a `Map<MessageQueue, …>`."""
    for key, value in fields.items():
        yield queue_of_key(key), value


def offset_map(fields: json_fields.Fields, name: str) -> dict[MessageQueue, int]:
    """Read a field that is `Map<MessageQueue, Long>`; {} when absent. Raises MalformedFrame."""
    return {
        queue: json_fields.as_integer(value, name)
        for queue, value in queue_map(json_fields.mapping(fields, name))
    }


def queue_object_map(fields: json_fields.Fields, name: str) -> dict[MessageQueue, dict[str, Any]]:
    """Read a field that is `Map<MessageQueue, Object>`; {} when absent. Raises MalformedFrame."""
    return {
        queue: json_fields.as_object(value, f"an entry of {name}")
        for queue, value in queue_map(json_fields.mapping(fields, name))
    }


def queues(fields: json_fields.Fields, name: str) -> tuple[MessageQueue, ...]:
    """Read an array of queues; () when absent. Raises MalformedFrame."""
    found = tuple(queue_from_dict(item) for item in json_fields.objects(fields, name))
    if any(not queue.topic for queue in found):
        raise MalformedFrame(f"a queue in {name} has no topic")
    return found
