"""Where a message goes: the topics and tags of an exchange's bindings. Core.

Durable queues: each one gets its copy in its own topic, by the bindings that this connection declared, which is what
Celery's producers do. Transient queues are bound by any process: one copy, in the topic that all of them read.

    exchange     durable queues          transient queues
    (default)    the queue of that name, when it exists; otherwise the transient queue of that name
    direct       bindings with this key  without a durable binding, or with a transient one: tag EXCHANGE%-KEY
    topic        matching bindings       without a durable binding, or with a transient one: the exchange's topic
    fanout       all bindings            always: the exchange's topic
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aerobee.contrib.celery.names import direct_tag, exchange_topic, key_tag, queue_tag, transient_topic


@dataclass(frozen=True, slots=True)
class Target:
    """One copy of a message. `queue` is a durable queue; without one, `topic` and `tag` are those of transient queues."""

    queue: str = ""
    topic: str = ""
    tag: str | None = None


def default_transient(prefix: str, queue: str) -> Target:
    """The transient queue of this name."""
    return Target(topic=transient_topic(prefix), tag=queue_tag(queue))


def targets(
    prefix: str, kind: str, exchange: str, routing_key: str, bound: Iterable[str], transient: Iterable[str]
) -> list[Target]:
    """The copies of a message for the queues `bound` that match, of which `transient` are transient."""
    names, passing = sorted(bound), set(transient)
    durable = [Target(queue=name) for name in names if name not in passing]
    shared = len(durable) < len(names) or not durable or kind == "fanout"
    if not shared:
        return durable
    if kind == "direct":
        copy = Target(topic=transient_topic(prefix), tag=direct_tag(exchange, routing_key))
    else:
        copy = Target(topic=exchange_topic(prefix, exchange), tag=key_tag(routing_key))
    return [*durable, copy]
