"""Messages of a store on the real disk."""

from __future__ import annotations

from pathlib import Path

from aerobee.clock import SystemClock
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def new_store(
    root: Path, disk: RealDisk | None = None, clock: object = None, **changes: object
) -> MessageStore:
    config = StoreConfig(
        **{  # type: ignore[arg-type]
            "store_path_root_dir": str(root),
            "mapped_file_size_commit_log": 65_536,
            "mapped_file_size_consume_queue": 4_000,
            "max_hash_slot_num": 100,
            "max_index_num": 1_000,
            **changes,
        }
    )
    return MessageStore(
        config, disk=disk or RealDisk(), clock=clock or SystemClock(), store_host=lambda: HOST
    )  # type: ignore[arg-type]


def message(
    number: int, size: int = 100, topic: str = "T", queue_id: int = 0, **changes: object
) -> StoredMessage:
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=f"{number}:".encode().ljust(size, b"x"),
        properties=f"UNIQ_KEY\x01K{number}\x02".encode(),
        born_host=HOST,
        **changes,  # type: ignore[arg-type]
    )
