"""Messages of a pop answer, each with the handle that acknowledges it. Core.

Source: MQClientAPIImpl.processPopResponse (RocketMQ). A message of a retry topic contains its handle in property
POP_CK; for others it is composed from the reply's startOffsetInfo and msgOffsetInfo.
"""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.client.base.received import ReceivedMessage, decode_messages
from aerobee.errors import MalformedFrame
from aerobee.lite_topic import lite_queue, split_lite_queue
from aerobee.message import MessageQueue, decode_record
from aerobee.property_names import LITE_TOPIC, POP_CK
from aerobee.record_head import head_struct
from aerobee.remoting.body.pop_handle import (
    NORMAL,
    Handle,
    parse_handle,
    parse_message_offsets,
    parse_order_counts,
    parse_start_offsets,
    real_topic,
)
from aerobee.remoting.command import RemotingCommand

_SIZE_AND_QUEUE = head_struct("size", "queue_id")


class PoppedMessage(ReceivedMessage):
    """A message that stays invisible to the group's other members until `visible_at_ms`.

    `place` is the topic and queue that stores it, a retry topic for a redelivered message. `handle` identifies the
    delivery to its broker; a change of the invisible time replaces it.
    """

    __slots__ = ("arrived_s", "handle", "pop_queue", "times_before")

    def __init__(
        self,
        message: ReceivedMessage,
        handle: Handle,
        pop_queue: MessageQueue,
        times_before: int,
        arrived_s: float = 0.0,
    ) -> None:
        """`arrived_s`: when its answer arrived, by this client's monotonic clock."""
        super().__init__(
            message.topic,
            message.queue,
            message.queue_offset,
            message._body,
            message._raw_properties,
            message._head,
            message.size_bytes,
            message.sys_flag,
        )
        self.handle = handle
        self.pop_queue = pop_queue
        self.times_before = times_before
        self.arrived_s = arrived_s

    @property
    def lite_topic(self) -> str:
        """The lite topic from which it was received; "" for a message of an ordinary topic."""
        lite = split_lite_queue(self.pop_queue.topic)
        return "" if lite is None else lite[1]

    @property
    def visible_at_ms(self) -> int:
        """Time at which another member may receive it, by the broker's clock, ms since the epoch."""
        return self.handle.revive_time

    def left_s(self, now_s: float) -> float:
        """Remaining seconds of the invisible time of the pop; `now_s` is this client's monotonic time.

        The wall clocks of client and broker are not compared: they may differ by hours.
        """
        return self.arrived_s + self.handle.invisible_ms / 1000 - now_s

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries; 0 at the first delivery."""
        return self.times_before or super().reconsume_times


def decode_popped(
    answer: RemotingCommand, topic: str, group: str, broker_name: str, arrived_s: float = 0.0
) -> list[PoppedMessage]:
    """The messages of a reply with code 0 that arrived at `arrived_s` by this client's monotonic clock.

    Raises MalformedFrame or MalformedRecord for an invalid reply.
    """
    starts = parse_start_offsets(answer.field("startOffsetInfo"))
    offsets = parse_message_offsets(answer.field("msgOffsetInfo"))
    counts = parse_order_counts(answer.field("orderCountInfo"))
    handed_out = {
        (queue_id, offset)
        for (retry, queue_id), held in offsets.items()
        if retry == NORMAL
        for offset in held
    }
    pop_time, invisible_ms = answer.integer("popTime"), answer.integer("invisibleTime")
    revive_queue_id = answer.integer("reviveQid")
    found: list[PoppedMessage] = []
    for message in _messages(answer.body, topic, broker_name):
        queue_id, offset = message.queue.queue_id, message.queue_offset
        text = message.properties.get(POP_CK)
        handle = parse_handle(text) if text else None
        if handle is not None and (handle.queue_id, handle.queue_offset) == (queue_id, offset):
            # A message of a retry topic may have the same queue id and offset as one of the topic itself.
            pass
        elif (queue_id, offset) in handed_out:
            start = starts.get((NORMAL, queue_id), offset)
            handle = Handle(
                start, pop_time, invisible_ms, revive_queue_id, NORMAL, broker_name, queue_id, offset
            )
        else:
            raise MalformedFrame(
                f"a pop answer of {broker_name} holds message {offset} of {topic} queue {queue_id} without a handle"
            )
        times = counts.get((NORMAL, f"qo{queue_id}%{offset}"), counts.get((NORMAL, str(queue_id)), 0))
        pop_queue = MessageQueue(real_topic(topic, group, handle.retry), broker_name, queue_id)
        found.append(PoppedMessage(message, handle, pop_queue, times, arrived_s))
    return found


def decode_lite_popped(
    answer: RemotingCommand, topic: str, broker_name: str, arrived_s: float = 0.0
) -> list[PoppedMessage]:
    """The messages of a lite pop's reply with code 0, grouped by lite topic, in the order of their offsets there.

    Raises MalformedFrame or MalformedRecord for an invalid reply.
    """
    pop_time, invisible_ms = answer.integer("popTime"), answer.integer("invisibleTime")
    revive_queue_id = answer.integer("reviveQid")
    counts = (answer.field("orderCountInfo") or "").split(";")
    found: list[PoppedMessage] = []
    starts: dict[str, int] = {}
    at, body = 0, answer.body
    while at < len(body):
        record = decode_record(body, at, check_crc=False)
        queue = MessageQueue(lite_queue(topic, record.properties.get(LITE_TOPIC, "")), broker_name, 0)
        (message,) = decode_messages(body[at : at + record.total_size], queue)
        at += record.total_size
        offset = message.queue_offset
        start = starts.setdefault(queue.topic, offset)
        handle = Handle(start, pop_time, invisible_ms, revive_queue_id, NORMAL, broker_name, 0, offset)
        text = counts[len(found)] if len(found) < len(counts) else ""
        times = int(text) if text.isdecimal() and len(text) < 10 else 0
        found.append(PoppedMessage(message, handle, queue, times, arrived_s))
    return found


def _messages(body: bytes, topic: str, broker_name: str) -> Iterator[ReceivedMessage]:
    """Records of several queues, back to back and grouped by queue."""
    at, end = 0, len(body)
    run_start, run_queue = 0, -1
    while at < end:
        if end - at < _SIZE_AND_QUEUE.size:
            raise MalformedFrame(f"{end - at} bytes at {at} of a pop answer are no record")
        size, queue_id = _SIZE_AND_QUEUE.unpack_from(body, at)
        if not 0 < size <= end - at:
            raise MalformedFrame(f"a record at {at} of a pop answer claims {size} bytes of {end - at}")
        if queue_id != run_queue and run_queue >= 0:
            yield from decode_messages(body[run_start:at], MessageQueue(topic, broker_name, run_queue))
            run_start = at
        run_queue = queue_id
        at += size
    if run_queue >= 0:
        yield from decode_messages(body[run_start:], MessageQueue(topic, broker_name, run_queue))
