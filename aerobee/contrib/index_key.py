"""Ids of a framework as index keys of messages."""

from __future__ import annotations

KEY_CHARS_MAX = 200


def index_keys(text: object) -> tuple[str, ...]:
    """The id as the one key of a message, so that `aerobee message key` finds it; none when it cannot be a key."""
    if not isinstance(text, str) or not 0 < len(text) <= KEY_CHARS_MAX:
        return ()
    return (text,) if text.isprintable() and " " not in text else ()
