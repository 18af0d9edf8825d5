"""The simulated disk loses what was not synced, from the moment on in which the power goes."""

from __future__ import annotations

import random

from aerobee.simulation.simulated_disk import ALL_LOST_OR_SOME_KEPT, SimulatedDisk

PAGE = 4096
SEEDS = range(40)


def _kept(seed: int, *, is_synced_before: bool, is_synced_meanwhile: bool) -> int:
    """So many of ten pages are there after a loss of power."""
    disk = SimulatedDisk(random.Random(seed), kept_parts=ALL_LOST_OR_SOME_KEPT)
    file = disk.create_mapped("/a", 10 * PAGE)
    disk.sync_dir("/")
    file.sync(0, file.size)
    file.buffer[:] = b"x" * file.size
    if is_synced_before:
        file.sync(0, file.size)
    disk.lose_power()
    if is_synced_meanwhile:
        file.sync(0, file.size)
        disk.write_file("/b", b"too late")
        disk.sync_file("/b")
        disk.sync_dir("/")
    disk.power_loss()
    assert not disk.exists("/b")
    found = disk.read_file("/a")
    return sum(found[at : at + PAGE] == b"x" * PAGE for at in range(0, len(found), PAGE))


def test_what_was_synced_before_stays() -> None:
    assert all(_kept(seed, is_synced_before=True, is_synced_meanwhile=False) == 10 for seed in SEEDS)


def test_a_sync_after_the_loss_changes_nothing() -> None:
    for seed in SEEDS:
        assert _kept(seed, is_synced_before=False, is_synced_meanwhile=True) == _kept(
            seed, is_synced_before=False, is_synced_meanwhile=False
        )


def test_a_loss_keeps_nothing_some_or_most_of_what_was_not_synced() -> None:
    found = {_kept(seed, is_synced_before=False, is_synced_meanwhile=False) for seed in SEEDS}
    assert 0 in found
    assert {1, 2, 3, 4, 5} & found
    assert {7, 8, 9, 10} & found
