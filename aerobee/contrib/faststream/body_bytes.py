"""What the middlewares for metrics and for spans have in common."""

from __future__ import annotations

from typing import Any


def body_bytes(message: Any) -> int:
    """Size of the body of a message, of a batch the sum, in bytes."""
    body = message.body
    return sum(map(len, body)) if isinstance(body, list) else len(body)
