"""The result of one check of `aerobee doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check: `level` is ok, warn or fail; `advice` is the remedy for warn and fail."""

    part: str
    check: str
    level: str
    detail: str
    advice: str = ""
