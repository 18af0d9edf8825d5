"""A master's timer checkpoints, and the files of the timer log that they need no more."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from aerobee.broker.timer.pending_counts import PendingCounts
from aerobee.broker.timer.timer_saver import TimerSaver
from aerobee.clock import ManualClock
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import TimerUnit

BEGIN_MS = 1_700_000_000_000
CONFIG = StoreConfig(store_path_root_dir="/store", mapped_file_size_timer_log=4096, timer_roll_window_slot=20)


def opened(disk: SimulatedDisk) -> TimerFiles:
    files = TimerFiles(CONFIG, disk, slot_count=64)
    files.load(log_end=1_000, queue_max=1_000, queue_offset_of=lambda offset: None)
    return files


def test_a_kill_between_checkpoints_finds_a_timer_log_whose_old_files_are_deleted_whole() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_dirs("/store/config")
    files, clock, flushes = opened(disk), ManualClock(), list[Callable[[bool], None]]()
    files.add_run([TimerUnit(-1, 1, BEGIN_MS, 1_000, number, 100, 7, 0) for number in range(200)])
    service: Any = SimpleNamespace(
        progress=SimpleNamespace(
            read_time=BEGIN_MS + 60_000,
            queue_offset=200,
            behind_messages=0,
            scan_from=900,
            is_changed=True,
            saved=lambda: None,
            lateness=SimpleNamespace(turn=lambda now: None),
        )
    )
    store: Any = SimpleNamespace(
        log=SimpleNamespace(end=1_000),
        flushed=SimpleNamespace(when=lambda end, callback: flushes.append(callback)),
        want_flush=lambda: None,
    )
    saver = TimerSaver(
        service=service,
        files=files,
        store=store,
        pending=PendingCounts(0),
        metrics_path="/store/config/timermetrics",
        disk=disk,
        clock=clock,
        interval_ms=lambda: 1_000,
        run_blocking=lambda work: work(),
    )
    saver._tick()
    flushes.pop()(True)
    begin = files.log.min_position
    service.progress.is_changed = False
    saver._tick()
    assert files.log.min_position > begin
    assert opened(disk).rebuilt_from is None, "killed before the checkpoint was written"
    flushes.pop()(True)
    left = disk.list_dir("/store/timerlog")
    assert f"{begin:020d}" not in left
    assert opened(disk).rebuilt_from is None
