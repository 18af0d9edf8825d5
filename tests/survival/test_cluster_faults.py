"""Short form of cluster_faults.py: faults of each kind. It takes root, for namespaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("cluster_faults.py")
SHORT = (
    "--mixed",
    "--kills",
    "2",
    "--pauses",
    "1",
    "--partitions",
    "1",
    "--slow-links",
    "1",
    "--full-disks",
    "1",
)


def test_nothing_acknowledged_is_lost_when_masters_die_stop_and_are_cut_off() -> None:
    """Without the right to make namespaces this fails, and says so: a run that skips it has shown nothing."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *SHORT],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
