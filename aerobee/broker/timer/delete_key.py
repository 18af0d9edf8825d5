"""Identifies the pending message of a recall: same topic and same id (TimerMessageStore.buildDeleteKey).

A cancelling message names a waiting one in TIMER_DEL_UNIQKEY: its unique id, or `topic+id` with
appendTopicForTimerDeleteKey. Both forms are read independent of the setting, so that changing it loses no recall. With
the short form RocketMQ recalls any message with that id, in any topic; here the cancelling message's topic must match.
The same applies to a cancelling message that names the record (AEROBEE_DEL_OFFSET): permission for one topic does not
allow recalls in another. Core.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.property_names import REAL_TOPIC, TIMER_DELETE_KEY, TIMER_DELETE_OFFSET, UNIQUE_KEY


def written_key(topic: str, unique_key: str, *, with_topic: bool) -> str:
    """Value of a cancelling message's TIMER_DEL_UNIQKEY."""
    return f"{topic}+{unique_key}" if with_topic else unique_key


def waiting_key(properties: Mapping[str, str]) -> str:
    """The key of a waiting message, from the properties of its record in the timer's topic."""
    return f"{properties.get(REAL_TOPIC, '')}+{properties.get(UNIQUE_KEY, '')}"


def waiting_keys(properties: Mapping[str, str], physical_offset: int) -> tuple[str, str]:
    """The keys by which a waiting message is taken back: of all that have its topic and id, and of its record alone."""
    return waiting_key(properties), _record_key(properties.get(REAL_TOPIC, ""), str(physical_offset))


def cancelled_key(properties: Mapping[str, str]) -> str | None:
    """The key of the message that a cancelling one takes back; None for a message that cancels nothing."""
    named = properties.get(TIMER_DELETE_KEY)
    if named is None:
        return None
    topic, offset = properties.get(REAL_TOPIC, ""), properties.get(TIMER_DELETE_OFFSET)
    if offset:
        return _record_key(topic, offset)
    return named if named.startswith(f"{topic}+") else f"{topic}+{named}"


def _record_key(topic: str, physical_offset: str) -> str:
    return f"@{physical_offset}+{topic}"  # no topic's name has an @
