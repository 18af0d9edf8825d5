"""The version of a peer, which requests carry as an ordinal of MQVersion. Core.

From 4.0.0 on the ordinals follow a rule: each version has one for its snapshot and one for its release, a minor version has ten
patch versions, and a major version has ten minor versions. Source: MQVersion.Version.
"""

from __future__ import annotations

FIRST = 212  # V4_0_0_SNAPSHOT
LAST = 611  # V5_9_9; the next one is HIGHER_VERSION


def version_text(ordinal: int) -> str:
    """ "5.5.0" for 513. Versions before 4.0 and unknown ones have a description."""
    if ordinal < FIRST:
        return "before 4.0" if ordinal >= 0 else f"unknown ({ordinal})"
    if ordinal > LAST:
        return "above 5.9"
    number, is_release = divmod(ordinal - FIRST, 2)
    text = f"{4 + number // 100}.{number // 10 % 10}.{number % 10}"
    return text if is_release else f"{text}-snapshot"
