"""Invariants of a stream at the end of a run, from the replies to its clients."""

from __future__ import annotations

import itertools

from aerobee.client import ReceivedMessage
from aerobee.client.base.received import decode_messages
from aerobee.message import MessageQueue
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.message_checks import check_acknowledged, check_once, check_order
from aerobee.simulation.names import NAME
from aerobee.simulation.node import Node
from aerobee.simulation.stream import LMQS, QUEUES, Stream
from aerobee.simulation.traffic import Kind, Way
from aerobee.store.log.stored_message import GetStatus


def check_stream(stream: Stream, master: Node, waits_for_replicas: bool) -> None:
    """Raise Broken when the master's messages contradict the replies to clients."""
    topic = stream.traffic.topic
    stored = {
        (queue_id, offset): message
        for queue_id in range(QUEUES)
        for offset, message in read_queue(master, topic, queue_id).items()
    }
    for message in stored.values():
        sent = stream.sent.get(message.body)
        if sent is None:
            raise Broken(Checker.NOTHING_UNSENT, f"{topic}: {message.body[:24]!r} is stored, but never sent")
        stream.check_content(sent, message)
    promised = [each for each in stream.sent.values() if each.is_promised(waits_for_replicas)]
    bodies = {position: message.body for position, message in stored.items()}
    check_acknowledged(promised, bodies)
    check_once(stream.sent.values(), bodies)
    check_order(promised, bodies)
    if stream.traffic.kind is Kind.LIGHT:
        _check_lmqs(stream, master, set(bodies.values()))
    if stream.traffic.way is Way.ORDERLY and waits_for_replicas:
        _check_arrivals(stream)
    stream.look()


def missing(stream: Stream, waits_for_replicas: bool) -> list[bytes]:
    """Promised messages that the group has not handled."""
    return [
        each.body
        for each in stream.sent.values()
        if each.is_promised(waits_for_replicas) and each.body not in stream.received
    ]


def read_queue(node: Node, topic: str, queue_id: int) -> dict[int, ReceivedMessage]:
    """offset -> message, for all messages of a queue at this broker, batches unwrapped."""
    store = node.process.store
    found: dict[int, ReceivedMessage] = {}
    offset = store.min_offset(topic, queue_id)
    queue = MessageQueue(topic, NAME, queue_id)
    while True:
        result = store.get_messages(topic, queue_id, offset, count_max=32)
        if result.status is not GetStatus.FOUND:
            return found
        for message in decode_messages(result.body, queue):
            found[message.queue_offset] = message
        offset = result.next_offset


def _check_lmqs(stream: Stream, master: Node, stored: set[bytes]) -> None:
    """Each stored message is in each of its LMQs once."""
    for name in LMQS:
        found = [message.body for message in read_queue(master, name, 0).values()]
        wanted = {
            body for body in stored if name in stream.sent[body].properties["INNER_MULTI_DISPATCH"].split(",")
        }
        if len(found) != len(set(found)) or set(found) != wanted:
            odd = sorted(set(found) ^ wanted)[:3]
            raise Broken(
                Checker.ACKNOWLEDGED,
                f"{name} has {len(found)} messages, {len(wanted)} are stored for it; the difference begins with {odd}",
            )


def _check_arrivals(stream: Stream) -> None:
    """An orderly group handles messages for the first time in the order of the queue."""
    for queue_id, offsets in stream.first_arrivals.items():
        for before, after in itertools.pairwise(offsets):
            if after < before:
                raise Broken(
                    Checker.ORDER,
                    f"{stream.traffic.topic}: in queue {queue_id} the message at {after} was first handled after that at {before}",
                )
