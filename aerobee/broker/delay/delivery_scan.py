"""Finds deliveries in the log while the broker serves: a new master determines what the previous one has delivered.

Bytes that are not in memory are loaded by a thread before they are read, and the event loop continues after each slice.
"""

from __future__ import annotations

import asyncio

from aerobee.store.log.source_pointer import take_sources
from aerobee.store.message_store import MessageStore

PIECE_BYTES = 2 << 20  # some 2 ms of small records
HEAD_BYTES = 256
LARGE_BYTES = 64 << 10  # of a record of this size the head alone is read


async def deliveries_between(store: MessageStore, start: int, end: int) -> set[int]:
    """Physical offsets of the sources of all deliveries in [start, end). `start` is the start of a record, or `end`.

    Reads small records in pieces, and of large ones the heads: a log of large messages is not read whole.
    Raises StoreError for a log file that cannot be read.
    """
    sources: set[int] = set()
    at = max(start, store.log.min_offset)
    while at < end:
        begin, stop = at, min(end, at + PIECE_BYTES)
        await store.warm_records([(begin, min(HEAD_BYTES, end - begin))])
        at = take_sources(store.log, max(begin, store.log.min_offset), begin + 1, sources)
        if at - begin < LARGE_BYTES and at < stop:
            await store.warm_records([(at, stop - at)])
            at = take_sources(store.log, max(at, store.log.min_offset), stop, sources)
        await asyncio.sleep(0)
    return sources
