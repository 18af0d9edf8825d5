"""No directory is written by two brokers, whatever their roots are."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.clock import SystemClock
from aerobee.errors import StoreLocked
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.message_store import MessageStore


def make(root: Path, log: Path | None = None) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(root),
        store_path_commit_log=str(log) if log is not None else "",
        mapped_file_size_commit_log=65_536,
    )
    return MessageStore(config, disk=RealDisk(), clock=SystemClock())


@pytest.mark.parametrize("first_log", [None, "shared"])
async def test_one_commit_log_under_two_roots_is_refused(tmp_path: Path, first_log: str | None) -> None:
    log = tmp_path / "shared" if first_log else tmp_path / "a" / "commitlog"
    first = make(tmp_path / "a", log if first_log else None)
    first.load()
    second = make(tmp_path / "b", log)
    with pytest.raises(StoreLocked, match=str(log)):
        second.load()
    await first.stop()
    second.load()  # what the refused start had locked is free
    await second.stop()


async def test_a_root_inside_another_brokers_commit_log_is_refused(tmp_path: Path) -> None:
    first = make(tmp_path / "a", tmp_path / "log")
    first.load()
    with pytest.raises(StoreLocked, match="another broker"):
        make(tmp_path / "log").load()
    await first.stop()
