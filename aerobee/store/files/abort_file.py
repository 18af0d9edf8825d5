"""The file `abort` exists while a broker runs, and a clean stop removes it. A start that finds it follows a crash.

Its content is the process id in decimal; `abort.bak` holds the content before the last write, as RocketMQ leaves it.
"""

from __future__ import annotations

import os

from aerobee.store.files.disk import Disk


def was_aborted(disk: Disk, root: str) -> bool:
    """Whether the last owner of the directory did not close it in order. Raises OSError."""
    return disk.exists(os.path.join(root, "abort"))


def write_abort_file(disk: Disk, root: str, process_id: int) -> None:
    """Durable on return."""
    path = os.path.join(root, "abort")
    previous = disk.read_file(path) if disk.exists(path) else b""
    disk.replace_file(path + ".bak", previous)
    disk.replace_file(path, str(process_id).encode())


def remove_abort_file(disk: Disk, root: str) -> None:
    """Durable on return."""
    disk.remove(os.path.join(root, "abort"))
    disk.sync_dir(root)
