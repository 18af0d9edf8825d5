"""What a new master reads of the log to find what the last one has delivered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from aerobee.broker.delay.delivery_scan import HEAD_BYTES, PIECE_BYTES, deliveries_between
from aerobee.store.log.source_pointer import delivered_sources, source_pointer
from tests.integration.store_messages import message, new_store

LARGE_BODY_BYTES = 300_000


@pytest.mark.parametrize("log_file_bytes", [1 << 20, 1 << 24], ids=["many-files", "one-file"])
async def test_of_large_messages_the_heads_are_read(
    log_file_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of 50 GB of large messages is not read whole while timers wait."""
    store = new_store(tmp_path, mapped_file_size_commit_log=log_file_bytes)
    store.load()
    await store.start()
    try:
        sizes = [LARGE_BODY_BYTES] * 12 + [100] * 50 + [LARGE_BODY_BYTES, 100, LARGE_BODY_BYTES, 100]
        for number, size in enumerate(sizes):
            store.append(message(number, size, prepared_transaction_offset=source_pointer(7 * number)))
        read = 0
        warm = store.warm_records

        async def counted(extents: Sequence[tuple[int, int]]) -> None:
            nonlocal read
            read += sum(size for _, size in extents)
            await warm(extents)

        monkeypatch.setattr(store, "warm_records", counted)
        found = await deliveries_between(store, 0, store.log.end)
        assert found == {7 * number for number in range(len(sizes))}
        assert found == delivered_sources(store.log, 0, store.log.end)
        assert read <= 14 * HEAD_BYTES + PIECE_BYTES < store.log.end
    finally:
        await store.stop()
