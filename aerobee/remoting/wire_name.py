"""Names that peers send: of brokers, clusters, clients, listeners. Core.

Names are shown in logs, terminal tables and line-based files. A line break would forge a line there, and
U+202E would reverse the rest of a line, so every name that a server stores or writes is printable
(str.isprintable: no control, format or separator character but the blank).
"""

from __future__ import annotations

from aerobee.errors import MalformedFrame


def check_wire_name(text: str, what: str, chars_max: int, *, is_required: bool = True) -> str:
    """Return the name. Raises MalformedFrame, which names `what`, unless it is printable and has 1 to `chars_max` characters, or is
    empty where it is not `is_required`."""
    if is_required and not text:
        raise MalformedFrame(f"{what} must not be empty")
    if len(text) > chars_max:
        raise MalformedFrame(f"{what} has {len(text)} characters, at most {chars_max} are allowed")
    if not text.isprintable():
        raise MalformedFrame(
            f"{what} is {text[:80]!r}: line breaks, control and format characters are not allowed"
        )
    return text
