"""Catching up looks at so many slots of the wheel at a time, not at all of them: the event loop gets its turn between."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.timer import slots_at_hand
from aerobee.broker.timer.slots_at_hand import SlotsAtHand
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_wheel import SLOT_BYTES

BASE_MS = 1_700_000_000_000


@pytest.mark.parametrize("behind_s", [100, 3_000, 100_000])
def test_all_used_slots_are_found_one_look_after_the_other(
    behind_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk: Any = SimulatedDisk(random.Random(1))
    disk.make_dirs("/store")
    files = TimerFiles(StoreConfig(store_path_root_dir="/store"), disk, slot_count=2_048)
    files.wheel.make()
    now_ms = BASE_MS + behind_s * 1000
    wanted = [BASE_MS + at * 1000 for at in (0, 7, 900, 901, 2_999, 4_000) if at < behind_s]
    for time_ms in wanted:
        files.wheel.put(time_ms, 0, 0, 1)
    nothing: Any = SimpleNamespace()
    slots = SlotsAtHand(files, nothing, nothing, lambda offsets: None)
    monkeypatch.setattr(slots_at_hand, "SLOTS_PER_LOOK", 64)
    file: Any = files.wheel._file
    read, read_bytes = file.read, 0

    def counted(start: int, end: int) -> bytes:
        nonlocal read_bytes
        read_bytes += end - start
        data: bytes = read(start, end)
        return data

    monkeypatch.setattr(file, "read", counted)
    found, at = [], BASE_MS
    while at < now_ms:
        read_bytes = 0
        is_within_the_wheel = now_ms - at < files.span_ms
        at = slots.next_used(at, now_ms)
        if is_within_the_wheel:
            assert read_bytes <= 64 * SLOT_BYTES
        if at < now_ms and files.wheel.get(at) is not None:
            found.append(at)
        if at < now_ms:
            at += 1000
    assert found == wanted
    assert slots.next_used(now_ms + 5_000, now_ms) == now_ms + 5_000
