"""Store directories that RocketMQ wrote."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from aerobee.clock import SystemClock
from aerobee.message import decode_records
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.log.stored_message import GetStatus
from aerobee.store.message_store import MessageStore

DATA = Path(__file__).parent.parent / "data" / "store"
SMALL = ("clean-shutdown", "killed", "batch-consume-queue")
HOST = b"\x7f\x00\x00\x02\x00\x00\x51\xaf"


class Archive:
    """One unpacked directory and what its listing says is inside."""

    def __init__(self, name: str, directory: Path) -> None:
        with tarfile.open(DATA / f"{name}.tar.gz") as archive:
            # The timer wheel is 38 MB of zeros that nothing here reads.
            members = [member for member in archive.getmembers() if not member.name.endswith("/timerwheel")]
            # The archives are this repository's own, and Python 3.11.2 (Debian 12) has no extraction filters.
            if hasattr(tarfile, "data_filter"):
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(directory, members)
        self.name = name
        self.root = directory / name
        self.expected: dict[str, Any] = json.loads((DATA / f"{name}.expected.json").read_text())

    def config(self, **changes: Any) -> StoreConfig:
        sizes: dict[str, Any] = (
            {
                "mapped_file_size_commit_log": 262_144,
                "mapped_file_size_consume_queue": 4_000,
                "mapper_file_size_batch_consume_queue": 4_600,
                "max_hash_slot_num": 500,
                "max_index_num": 2_000,
            }
            if self.name in SMALL
            else {
                "mapped_file_size_commit_log": 1_048_576,
                "mapped_file_size_consume_queue": 20_000,
                "max_hash_slot_num": 1_000,
                "max_index_num": 4_000,
            }
        )
        return StoreConfig(store_path_root_dir=str(self.root), **{**sizes, **changes})

    def open(self, **changes: Any) -> MessageStore:
        store = MessageStore(
            self.config(**changes), disk=RealDisk(), clock=SystemClock(), store_host=lambda: HOST
        )
        self.report = store.load()
        return store

    def queues(self) -> list[tuple[str, int, list[list[int]], bool]]:
        found = []
        for path, entries in self.expected["queues"].items():
            kind, topic, queue_id = path.split("/")
            found.append((topic, int(queue_id), entries, kind == "batchconsumequeue"))
        return found


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[int]:
    """Physical offsets of everything that a consumer gets from offset 0 on."""
    offsets: list[int] = []
    offset = store.min_offset(topic, queue_id)
    while (result := store.get_messages(topic, queue_id, offset, count_max=32)).status is GetStatus.FOUND:
        offsets.extend(record.physical_offset for record in decode_records(result.body))
        assert result.next_offset > offset
        offset = result.next_offset
    assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
    return offsets
