"""The header grpc-timeout: at most eight digits and a unit. Core."""

from __future__ import annotations

_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_DIGITS_MAX = 8


def parse_timeout(text: str) -> float:
    """Return seconds. Raises ValueError for a text that is no timeout."""
    digits, unit = text[:-1], text[-1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX and unit in _SECONDS):
        raise ValueError(
            f"grpc-timeout is {text[:32]!r}: 1 to 8 digits and one of H, M, S, m, u, n are allowed"
        )
    return int(digits) * _SECONDS[unit]
