"""Receipt handles and the offset lists of a pop reply (ExtraInfoUtil).

A client acknowledges one message with its handle: eight tokens separated by blanks, followed by additions of a proxy
(RocketMQ's proxy: the offset in the commit log),

    start offset | pop time | invisible time | revive queue id | r | broker name | queue id | queue offset

`r` is the topic of the message: 0 the topic itself, 1 the retry topic `%RETRY%group_topic`, 2
`%RETRY%group+topic`. The lists of a reply have `r queueId value` with `;` between queues. Core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aerobee.errors import MalformedFrame
from aerobee.message import RETRY_PREFIX
from aerobee.quick_init import quick_init

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
HANDLE_CHARS_MAX = 1_024
HANDLE_TOKENS = 8
ORDERED_REVIVE_QUEUE = 999  # ordered pops have no check points


def retry_topic_v1(group: str, topic: str) -> str:
    return f"{RETRY_PREFIX}{group}_{topic}"


def retry_topic_v2(group: str, topic: str) -> str:
    return f"{RETRY_PREFIX}{group}+{topic}"


def topic_before_retry(topic: str, group: str) -> str:
    """The original topic of a group's POP retry topic; any other topic unchanged."""
    prefix = RETRY_PREFIX + group
    is_retry = topic.startswith((prefix + "_", prefix + "+")) and len(topic) > len(prefix) + 1
    return topic[len(prefix) + 1 :] if is_retry else topic


def real_topic(topic: str, group: str, retry: str) -> str:
    """The topic in which the message of a handle is stored, given the topic that the consumer subscribes to."""
    if retry == RETRY_V1:
        return retry_topic_v1(group, topic)
    return retry_topic_v2(group, topic) if retry == RETRY_V2 else topic


@quick_init
@dataclass(frozen=True, slots=True)
class Handle:
    """A receipt handle. `start_offset` and `pop_time` name the check point."""

    start_offset: int
    pop_time: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    broker_name: str
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_time} {self.invisible_ms} {self.revive_queue_id} {self.retry} "
            f"{self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @property
    def revive_time(self) -> int:
        return self.pop_time + self.invisible_ms

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE


def parse_handle(text: str) -> Handle:
    """Raises MalformedFrame for an invalid token among the first eight; ignores further tokens. Old clients
    send seven, without a queue offset.
    """
    tokens = text.split(" ", 8)[:8]
    if len(tokens) == 7:
        tokens.append(tokens[0])
    try:
        start, pop_time, invisible, revive_queue_id, retry, broker_name, queue_id, offset = tokens
        handle = Handle(
            int(start),
            int(pop_time),
            int(invisible),
            int(revive_queue_id),
            retry,
            broker_name,
            int(queue_id),
            int(offset),
        )
    except ValueError as error:
        raise MalformedFrame(
            f"extraInfo {text[:120]!r} is not a handle: eight tokens are expected, "
            "startOffset popTime invisibleTime reviveQid retry brokerName queueId queueOffset"
        ) from error
    if (
        not (0 <= handle.pop_time < 1 << 53 and 0 <= handle.invisible_ms < 1 << 53)
        or len(text) > HANDLE_CHARS_MAX
    ):
        raise MalformedFrame(f"extraInfo {text[:120]!r} is not a handle: its times are impossible")
    return handle


@quick_init
@dataclass(frozen=True, slots=True)
class QueueShare:
    """Messages that one pop took from one queue."""

    retry: str
    queue_id: int
    start_offset: int
    offsets: tuple[int, ...]


def start_offset_info(shares: Iterable[QueueShare]) -> str:
    return ";".join(f"{share.retry} {share.queue_id} {share.start_offset}" for share in shares)


def message_offset_info(shares: Iterable[QueueShare]) -> str:
    return ";".join(f"{share.retry} {share.queue_id} {','.join(map(str, share.offsets))}" for share in shares)


def parse_start_offsets(text: str | None) -> dict[tuple[str, int], int]:
    """{(r, queue id): start offset}. Raises MalformedFrame."""
    found: dict[tuple[str, int], int] = {}
    for piece in (text or "").split(";"):
        if piece:
            retry, queue_id, value = _three(piece, "startOffsetInfo")
            found[(retry, _number(queue_id, piece))] = _number(value, piece)
    return found


def parse_message_offsets(text: str | None) -> dict[tuple[str, int], tuple[int, ...]]:
    """{(r, queue id): queue offsets}. Raises MalformedFrame."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for piece in (text or "").split(";"):
        if piece:
            retry, queue_id, value = _three(piece, "msgOffsetInfo")
            offsets = tuple(_number(token, piece) for token in value.split(","))
            found[(retry, _number(queue_id, piece))] = offsets
    return found


def parse_order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """{(r, "queueId" or "qo<queueId>%<offset>"): times consumed}. Raises MalformedFrame."""
    found: dict[tuple[str, str], int] = {}
    for piece in (text or "").split(";"):
        if piece:
            retry, where, value = _three(piece, "orderCountInfo")
            found[(retry, where)] = _number(value, piece)
    return found


def _three(piece: str, field: str) -> tuple[str, str, str]:
    tokens = piece.split(" ")
    if len(tokens) != 3:
        raise MalformedFrame(f"{field} holds {piece[:80]!r}: three tokens are expected")
    return tokens[0], tokens[1], tokens[2]


def _number(text: str, piece: str) -> int:
    if len(text) > 20 or not text.isascii() or not text.removeprefix("-").isdigit():
        raise MalformedFrame(f"{piece[:80]!r} of a pop reply holds {text[:20]!r}, which is not a number")
    return int(text)
