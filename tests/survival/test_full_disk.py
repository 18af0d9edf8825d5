"""A broker on a small tmpfs that fills up, see full_disk.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.survival import full_disk

MEGABYTES = 48
CAP_SYS_ADMIN = 1 << 21


def may_mount() -> bool:
    """Whether this process has the right; root in a container most often has not."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) & CAP_SYS_ADMIN)


def test_a_full_disk_refuses_sends_with_the_reason_and_is_left_without_a_restart() -> None:
    try:
        figures = full_disk.run_all(MEGABYTES)
    except full_disk.NoMountRight as error:
        if may_mount():
            raise
        pytest.skip(f"no right to mount a small file system here: {error}")
    assert figures["deleted_by_retention"]
    assert "code 14" in str(figures["refusal_above_the_level"])
    assert "no disk space" in str(figures["refusal_without_space"])
