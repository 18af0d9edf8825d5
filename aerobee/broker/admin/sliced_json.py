"""Encodes large tables in slices, so that the event loop serves other requests in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from aerobee.remoting import fastjson

ENTRIES_PER_TURN = 500  # some milliseconds


async def dump_sliced(
    before: Mapping[str, Any],
    key: str,
    entries: Iterable[tuple[Any, Mapping[str, Any]]],
    after: Mapping[str, Any],
) -> bytes:
    """As fastjson.dumps({**before, key: dict(entries), **after}); `entries` must not change meanwhile."""
    pieces = []
    rest = iter(entries)
    while piece := dict(islice(rest, ENTRIES_PER_TURN)):
        pieces.append(fastjson.dumps(piece)[1:-1])
        await asyncio.sleep(0)
    members = [
        fastjson.dumps(before)[1:-1],
        fastjson.dumps(key) + b":{" + b",".join(pieces) + b"}",
        fastjson.dumps(after)[1:-1],
    ]
    return b"{" + b",".join(filter(None, members)) + b"}"
