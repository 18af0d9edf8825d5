"""Invariants of the messages of one topic: each is at its offset, once, in order."""

from __future__ import annotations

from collections.abc import Iterable

from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.party import Sent


def check_acknowledged(sent: list[Sent], stored: dict[tuple[int, int], bytes]) -> None:
    """Every acknowledged message is at its offset."""
    positions: dict[bytes, list[tuple[int, int]]] = {}
    for position, body in stored.items():
        positions.setdefault(body, []).append(position)
    lost = [
        each for each in sent if each.offset >= 0 and stored.get((each.queue_id, each.offset)) != each.body
    ]
    if lost:
        first = lost[0]
        raise Broken(
            Checker.ACKNOWLEDGED,
            f"{len(lost)} acknowledged messages are not where their answers said, the first one {first.body[:20]!r} of "
            f"{first.at:.3f} s, answered by {first.broker} at {first.answered_at:.3f} s, at queue {first.queue_id} offset "
            f"{first.offset}: there is {stored.get((first.queue_id, first.offset), b'nothing')[:20]!r}, it lies at "
            f"{positions.get(first.body, 'no offset')}",
        )


def check_once(sent: Iterable[Sent], stored: dict[tuple[int, int], bytes]) -> None:
    """A message that was sent once, or with a deduplication key, is stored at most once."""
    positions: dict[bytes, list[tuple[int, int]]] = {}
    for position, body in stored.items():
        positions.setdefault(body, []).append(position)
    for each in sent:
        if each.is_once and len(positions.get(each.body, [])) > 1:
            raise Broken(
                Checker.EXACTLY_ONCE,
                f"{each.body[:20]!r} is to be stored once and lies at {positions[each.body]}",
            )


def check_order(sent: list[Sent], stored: dict[tuple[int, int], bytes]) -> None:
    """A message that was sent after the acknowledgement of an earlier one of the same producer and queue is stored
    after it."""
    positiond: dict[tuple[bytes, int], list[Sent]] = {}
    for each in sent:
        if each.offset >= 0:
            positiond.setdefault((each.body.partition(b"-")[0], each.queue_id), []).append(each)
    for messages in positiond.values():
        messages.sort(key=lambda each: each.offset)
        latest = messages[0]
        for each in messages[1:]:
            if each.answered_at < latest.at:
                raise Broken(
                    Checker.ORDER,
                    f"{each.body[:12]!r} was answered before {latest.body[:12]!r} was sent, and lies behind it in queue "
                    f"{each.queue_id}: offsets {each.offset} and {latest.offset}",
                )
            if each.at > latest.at:
                latest = each
