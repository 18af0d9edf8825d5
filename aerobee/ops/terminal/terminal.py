"""What may be written to a terminal: bodies, properties and remarks are texts of strangers."""

from __future__ import annotations

from aerobee.visible_text import STEERING, visible

__all__ = ["STEERING", "shown", "visible"]


def shown(data: bytes) -> bytes:
    """The same for bytes; broken UTF-8 becomes the mark for it."""
    return visible(data.decode(errors="replace")).encode()
