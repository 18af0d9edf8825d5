"""Short forms of resource_faults.py. Where this process may not make control groups or mount, the same by other means."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from aerobee.clock import ManualClock
from aerobee.errors import AerobeeError, StoreError
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk, RealMappedFile
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from tests.survival import resource_faults
from tests.survival.resource_faults import NotHere

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def test_more_is_sent_and_read_than_there_is_memory_for() -> None:
    try:
        figures = resource_faults.memory(0.4)
    except NotHere:
        figures = resource_faults.memory(0.4, root=False)
    assert int(str(figures["acked"])) > 7_000


def test_a_broker_without_new_threads_continues_with_its_own() -> None:
    try:
        figures = resource_faults.threads()
    except NotHere:
        figures = resource_faults.threads(root=False)
    assert figures["acked"] == 700


def test_a_file_system_that_becomes_read_only_costs_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        figures = resource_faults.file_system("ext4", fills=False)
    except NotHere:
        _read_only_by_its_errno(tmp_path, monkeypatch)
    else:
        assert figures["acked"] == 300
        assert "a sync to the disk failed" in str(figures["refusal"]) or figures["then"] != "continues"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO])
def test_a_disk_that_syncs_no_more_takes_no_messages(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read_only_by_its_errno(tmp_path, monkeypatch, code)


def _read_only_by_its_errno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int = errno.EROFS) -> None:
    def make() -> MessageStore:
        config = StoreConfig(store_path_root_dir=str(tmp_path / "store"), mapped_file_size_commit_log=1 << 20)
        return MessageStore(config, disk=RealDisk(), clock=ManualClock(), store_host=lambda: HOST)

    def refuse(self: RealMappedFile, start: int, end: int) -> None:
        raise OSError(code, os.strerror(code))

    def message() -> StoredMessage:
        return StoredMessage(
            topic="T", queue_id=0, body=b"x", properties=b"", born_timestamp=1, born_host=HOST
        )

    store = make()
    store.load()
    for _ in range(10):
        store.append(message())
    store.flush_now()
    with monkeypatch.context() as patched:
        patched.setattr(RealMappedFile, "sync", refuse)
        store.append(message())
        with pytest.raises(StoreError, match=os.strerror(code)):
            store.flush_now()
        with pytest.raises(AerobeeError, match="restart"):
            store.append(message())
        store._close_files()
    again = make()
    again.load()
    assert again.max_offset("T", 0) >= 10
    again._close_files()
