"""Bounds a table of deleted topics, LMQs and groups. Core.

Each kind has its own bound: applications delete LMQs by the thousand, and a replica must learn of a deleted topic
nevertheless.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

from aerobee.system_names import LMQ_PREFIX

NEWEST_MAX = 10_000  # of a kind: replicas copy them within seconds
NAME_KINDS = 3
V = TypeVar("V")


def newest_names(entries: Mapping[str, V]) -> dict[str, V]:
    """The newest NEWEST_MAX topics, LMQs, and groups ("@group") each, in the order of `entries`: the oldest first."""
    kinds: dict[bool | None, list[str]] = {}
    for name in entries:
        is_light = None if name.startswith("@") else name.startswith(LMQ_PREFIX)
        kinds.setdefault(is_light, []).append(name)
    gone = {name for names in kinds.values() for name in names[:-NEWEST_MAX]}
    return {name: value for name, value in entries.items() if name not in gone}


def newest_of_peer(entries: Mapping[str, V]) -> dict[str, V]:
    """The newest entries of a table that a peer or a file has, as many as newest_names() may keep."""
    return dict(islice(entries.items(), max(0, len(entries) - NAME_KINDS * NEWEST_MAX), None))
