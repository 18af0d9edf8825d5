"""What a process holds, read from /proc: memory by kind, file handles, threads, CPU time. Linux."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """One look at a process. `anonymous_bytes` is what only this process pays for; mapped files are not in it."""

    anonymous_bytes: int
    file_bytes: int
    handles: int
    threads: int
    cpu_s: float


def look_at(pid: int) -> ProcessFigures:
    """Raises FileNotFoundError when the process is gone."""
    status = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        status[name] = value.split()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ProcessFigures(
        anonymous_bytes=int(status["RssAnon"][0]) * 1024,
        file_bytes=(int(status["RssFile"][0]) + int(status["RssShmem"][0])) * 1024,
        handles=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(status["Threads"][0]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
    )


def open_files_below(pid: int, directory: Path) -> int:
    """How many of a process's handles are files below `directory`: a store holds one for each file that it has."""
    count = 0
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += handle.readlink().is_relative_to(directory)
    return count
