"""What must hold of the messages of one topic: each is at its place, once, in order."""

from __future__ import annotations

from collections.abc import Iterable

from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.party import Sent


def check_acknowledged(sent: list[Sent], stored: dict[tuple[int, int], bytes]) -> None:
    """Every acknowledged message is at its place."""
    places: dict[bytes, list[tuple[int, int]]] = {}
    for place, body in stored.items():
        places.setdefault(body, []).append(place)
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
            f"{places.get(first.body, 'no place')}",
        )


def check_once(sent: Iterable[Sent], stored: dict[tuple[int, int], bytes]) -> None:
    """What its client sent once, or with a key that says that it is the same, is stored once at most."""
    places: dict[bytes, list[tuple[int, int]]] = {}
    for place, body in stored.items():
        places.setdefault(body, []).append(place)
    for each in sent:
        if each.is_once and len(places.get(each.body, [])) > 1:
            raise Broken(
                Checker.EXACTLY_ONCE,
                f"{each.body[:20]!r} is to be stored once and lies at {places[each.body]}",
            )


def check_order(sent: list[Sent], stored: dict[tuple[int, int], bytes]) -> None:
    """What was sent after another message of its producer and queue was answered lies behind it."""
    placed: dict[tuple[bytes, int], list[Sent]] = {}
    for each in sent:
        if each.offset >= 0:
            placed.setdefault((each.body.partition(b"-")[0], each.queue_id), []).append(each)
    for messages in placed.values():
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
