"""What may be written to a terminal: bodies, properties and remarks are texts of strangers."""

from __future__ import annotations

import re

# C0 without line feed and tab, DEL, and C1: what a terminal could take for an order.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Text as it is, but what could steer a terminal as \\xHH."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def shown(data: bytes) -> bytes:
    """The same for bytes; broken UTF-8 becomes the mark for it."""
    return visible(data.decode(errors="replace")).encode()
