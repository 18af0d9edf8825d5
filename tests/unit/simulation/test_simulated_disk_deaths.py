"""A process or a machine that dies inside a call of its simulated disk."""

from __future__ import annotations

import random

import pytest

from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk


def _disk() -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(1))
    disk.make_dirs("/store")
    disk.write_file("/store/old", b"old")
    return disk


def test_what_a_process_wrote_before_the_write_in_which_it_died_is_there() -> None:
    disk, died = _disk(), []
    file = disk.create_mapped("/store/log", 4096)
    disk.die_at_write(1, on_death=lambda: died.append(True))
    file.buffer[0:1] = b"a"
    disk.write_file("/store/new", b"new")
    with pytest.raises(PowerCut):
        disk.write_file("/store/newer", b"newer")
    file.buffer[1:2] = b"b"  # the process is gone: it reaches nothing
    with pytest.raises(PowerCut):
        disk.read_file("/store/new")
    assert died == [True]
    disk.crash()
    assert disk.read_file("/store/new") == b"new"
    assert disk.open_mapped("/store/log").read(0, 2) == b"a\0"
    assert disk.paths() == ["/store/log", "/store/new", "/store/old"]


def test_a_machine_that_dies_in_a_write_loses_what_was_not_synced() -> None:
    disk = SimulatedDisk(random.Random(1), kept_parts=(0.0, 0.0))
    disk.make_dirs("/store")
    disk.replace_file("/store/kept", b"kept")
    disk.die_at_write(0, power=True)
    with pytest.raises(PowerCut):
        disk.write_file("/store/lost", b"lost")
    assert disk.died_of_power
    disk.power_loss()
    assert disk.paths() == ["/store/kept"]
    assert not disk.is_dead


def test_a_process_that_is_to_live_after_all_lives() -> None:
    disk = _disk()
    disk.die_at_write(0)
    disk.die_at_write(-1)
    disk.write_file("/store/new", b"new")
    assert disk.read_file("/store/new") == b"new"
