"""Make untrusted text safe for a terminal: bodies, properties and remarks come from other parties."""

from __future__ import annotations

from aerobee.visible_text import STEERING, visible

__all__ = ["STEERING", "shown", "visible"]


def shown(data: bytes) -> bytes:
    """The same for bytes; invalid UTF-8 becomes U+FFFD."""
    return visible(data.decode(errors="replace")).encode()
