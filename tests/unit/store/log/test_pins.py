"""A file of the log that a reader has pinned stays open until it is unpinned, whatever becomes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.log.commit_log import CommitLog

FILE_BYTES = 1 << 20


def of_two_files(path: Path) -> CommitLog:
    config = StoreConfig(store_path_root_dir=str(path), mapped_file_size_commit_log=FILE_BYTES)
    Path(config.commit_log_dir).mkdir(parents=True)
    log = CommitLog(config, RealDisk())
    for _ in range(2):
        log.write_raw(log.end, memoryview(bytes(FILE_BYTES)), fills_file=True)
        log.end += FILE_BYTES
    return log


def test_a_file_that_is_cut_off_stays_open_for_its_reader(tmp_path: Path) -> None:
    log = of_two_files(tmp_path)
    descriptor = log.segments[1].file.fileno()
    pinned = log.pin(FILE_BYTES, FILE_BYTES + 1)
    log.set_end(FILE_BYTES // 2, clear=True)
    assert len(os.pread(descriptor, FILE_BYTES, 0)) == FILE_BYTES, "another file may have its number by now"
    log.unpin(pinned)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    log.close()


def test_a_reader_of_a_cut_file_releases_that_one_and_not_its_successor(tmp_path: Path) -> None:
    """Else the successor would be unmapped while a sync uses it, or never."""
    log = of_two_files(tmp_path)
    old = log.pin(FILE_BYTES, FILE_BYTES + 1)
    log.set_end(FILE_BYTES // 2, clear=True)
    log.write_raw(log.end, memoryview(bytes(FILE_BYTES // 2)), fills_file=True)
    log.end += FILE_BYTES // 2
    log.write_raw(log.end, memoryview(bytes(FILE_BYTES)), fills_file=True)
    log.end += FILE_BYTES
    new = log.pin(FILE_BYTES, FILE_BYTES + 1)
    log.unpin(old)
    assert [each.pins for each in log.segments] == [0, 1]
    log.unpin(new)
    assert [each.pins for each in log.segments] == [0, 0]
    log.close()
