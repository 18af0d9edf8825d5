"""Mutations that break the store's promises, one at a time, to show that the simulated runs detect each.

    python tests/simulation/mutations.py [--seeds 5000]

Each mutation replaces a step of the product by a wrong one, as a careless change would. Runs (store_world.py) run
until one breaks; printed is how many that took. Ends with status 1 when a mutation survives all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from aerobee.errors import StoreFull
from aerobee.simulation import simulated_disk
from aerobee.store import checkpointing, store_files
from aerobee.store.append.durability import Durability
from aerobee.store.append.log_appender import LogAppender
from aerobee.store.index.index_file import INDEX_ENTRY_BYTES, IndexFile
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log import dispatch, log_scanner
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_files import FilePool
from aerobee.store.upkeep import queue_upkeep

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.simulation import store_world

Mutation = contextlib.AbstractContextManager[Any]


def nothing(*args: object, **kwargs: object) -> None:
    """In place of a step that is left out."""


def fsync_of_the_log_is_skipped() -> Mutation:
    return mock.patch.object(CommitLog, "sync_pinned", nothing)


def fsync_of_the_queues_is_skipped() -> Mutation:
    return mock.patch.object(FilePool, "sync_file", nothing)


def names_of_log_files_are_not_synced() -> Mutation:
    original = CommitLog.sync_pinned

    def mutated(self: CommitLog, *args: Any) -> None:
        self._unsynced_names = False
        original(self, *args)

    return mock.patch.object(CommitLog, "sync_pinned", mutated)


def failed_fsync_is_ignored() -> Mutation:
    original = CommitLog.sync_pinned

    def mutated(self: CommitLog, *args: Any) -> None:
        with contextlib.suppress(OSError):
            original(self, *args)

    return mock.patch.object(CommitLog, "sync_pinned", mutated)


@contextlib.contextmanager
def what_a_failed_fsync_left_is_taken_for_durable() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner, name in ((CommitLog, "rewrite"), (FilePool, "rewrite_dirty"), (KeyIndex, "rewrite_dirty")):
            stack.enter_context(mock.patch.object(owner, name, nothing))
        yield


def acknowledged_before_the_flush() -> Mutation:
    def mutated(self: Durability, offset: int, callback: Callable[[bool], None]) -> None:
        callback(True)

    return mock.patch.object(Durability, "wait", mutated)


def queue_entry_before_the_log_record() -> Mutation:
    original = CommitLog.reserve

    def mutated(self: LogAppender, queue: Any, messages: Any, now_ms: int, **kwargs: Any) -> Any:
        before = queue.max_offset

        def reserve(log: CommitLog, size: int) -> int:
            try:
                return original(log, size)
            except StoreFull:
                assert isinstance(queue, ConsumeQueue)
                queue.max_offset = before + len(messages)  # the entries are there already
                raise

        with mock.patch.object(CommitLog, "reserve", reserve):
            return append_records(self, queue, messages, now_ms, **kwargs)

    append_records = LogAppender.append_records
    return mock.patch.object(LogAppender, "append_records", mutated)


@contextlib.contextmanager
def torn_tail_is_trusted() -> Iterator[None]:
    original = dispatch.scan_record

    def without_crc(data: bytes, physical_offset: int, *, check_crc: bool) -> Any:
        return original(data, physical_offset, check_crc=False)

    with (
        mock.patch.object(log_scanner, "scan_record", without_crc),
        mock.patch.object(dispatch, "_has_lost_sector", return_value=False),
    ):
        yield


def old_bytes_stay_behind_the_log() -> Mutation:
    original = CommitLog.set_end

    def mutated(self: CommitLog, end: int, *, clear: bool) -> int:
        return original(self, end, clear=False)

    return mock.patch.object(CommitLog, "set_end", mutated)


def checkpoint_ahead_of_the_data() -> Mutation:
    original = checkpointing.next_checkpoint

    def mutated(current: Any, *, log_end: int, **kwargs: Any) -> Any:
        return original(
            current, **{**kwargs, "log_end": log_end, "log_flushed": log_end, "queues_bound": log_end}
        )

    return mock.patch.object(checkpointing, "next_checkpoint", mutated)


def checkpoint_before_the_queues_sync() -> Mutation:
    def mutated(self: queue_upkeep.QueueUpkeep, work: Any, checkpoint: Any) -> None:
        self._checkpoints.write(checkpoint)
        self._flusher.sync(work)

    return mock.patch.object(queue_upkeep.QueueUpkeep, "_sync", mutated)


def abort_file_is_not_written() -> Mutation:
    return mock.patch.object(store_files, "write_abort_file", nothing)


def rename_without_fsync() -> Mutation:
    def mutated(disk: Any, path: str, data: bytes, **_: Any) -> None:
        disk.write_file(path + ".tmp", data)
        disk.rename(path + ".tmp", path)
        disk.sync_dir(os.path.dirname(path))

    return mock.patch.object(simulated_disk, "replace_file", mutated)


def new_directories_are_not_synced() -> Mutation:
    return mock.patch.object(FilePool, "take_dirty_dirs", return_value=[])


def index_entries_behind_the_count_stay() -> Mutation:
    def mutated(self: IndexFile, start: int) -> None:
        stop = self.entries_at + self.count * INDEX_ENTRY_BYTES
        if stop > start:
            self.buffer[start:stop] = bytes(stop - start)

    return mock.patch.object(IndexFile, "_clear_from", mutated)


def damage_at_a_sectors_end_counts_as_a_lost_write() -> Mutation:
    original = dispatch.scan_record

    def mutated(data: bytes, physical_offset: int, *, check_crc: bool) -> dispatch.Scan:
        scan = original(data, physical_offset, check_crc=check_crc)
        return dataclasses.replace(scan, size=0) if scan.kind is dispatch.ScanKind.BAD else scan

    return mock.patch.object(log_scanner, "scan_record", mutated)


# With a seed that is known to notice, tried first; when the runs change another one is looked for.
MUTATIONS: dict[Callable[[], Mutation], int] = {
    fsync_of_the_log_is_skipped: 1,
    fsync_of_the_queues_is_skipped: 1,
    names_of_log_files_are_not_synced: 1,
    failed_fsync_is_ignored: 3,
    what_a_failed_fsync_left_is_taken_for_durable: 22,
    acknowledged_before_the_flush: 2,
    queue_entry_before_the_log_record: 3,
    torn_tail_is_trusted: 3,
    old_bytes_stay_behind_the_log: 8,
    checkpoint_ahead_of_the_data: 10,
    checkpoint_before_the_queues_sync: 411,
    abort_file_is_not_written: 2,
    rename_without_fsync: 4,
    new_directories_are_not_synced: 2,
    # Faults that the store had until these seeds found them.
    index_entries_behind_the_count_stay: 10_127,
    damage_at_a_sectors_end_counts_as_a_lost_write: 20_804,
}


def first_to_notice(mutation: Callable[[], Mutation], seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of the seeds whose run breaks under the mutation, and how; None when all pass."""
    with mutation():
        for seed in seeds:
            try:
                store_world.run_seed(seed)
            except AssertionError as error:
                return seed, str(error)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5000)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    survivors = 0
    for mutation, known in MUTATIONS.items():
        fresh = range(options.first, options.first + options.seeds)
        noticed = first_to_notice(mutation, itertools.chain(fresh, (known,)))
        survivors += noticed is None
        seed, how = noticed or (None, "SURVIVES")
        print(
            json.dumps({"mutation": mutation.__name__, "noticed_by_seed": seed, "how": how[:160]}), flush=True
        )
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
