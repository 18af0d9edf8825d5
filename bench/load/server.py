"""CPU and memory of the processes that are measured, from their clocks and /proc."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(slots=True)
class ServerSample:
    """What the processes of a server have used."""

    cpu_s: float = 0.0
    messages: int = 0  # answered so far, by the workers' counters
    rss_mb: float = 0.0  # resident, mapped files included
    anon_mb: float = 0.0  # resident without mapped files: heap, stacks, malloc
    peak_mb: float = 0.0  # VmHWM


def process_cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process, ns resolution: Linux' per-process CPU clock."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


def sample_server(pids: list[int], counters: Sequence[int] = ()) -> ServerSample:
    """CPU and memory of the processes, and the messages that `counters` (one a worker) say were answered at that moment."""
    # Count, clock, count again: if the parent lost the processor in between, take both again.
    for _attempt in range(50):
        answered = sum(counters)
        began = time.monotonic_ns()
        sample = ServerSample(cpu_s=sum(process_cpu_s(pid) for pid in pids if Path(f"/proc/{pid}").exists()))
        if time.monotonic_ns() - began < 2_000_000:
            break
    sample.messages = (answered + sum(counters)) // 2
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        sizes = dict(re.findall(r"^(VmRSS|RssAnon|VmHWM):\s+(\d+) kB", status, re.M))
        sample.rss_mb += int(sizes.get("VmRSS", 0)) / 1024
        sample.anon_mb += int(sizes.get("RssAnon", 0)) / 1024
        sample.peak_mb += int(sizes.get("VmHWM", 0)) / 1024
    return sample


def pids_of_port(port: int) -> list[int]:
    """Processes that listen on a TCP port, by socket inode."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            targets = {os.readlink(descriptor) for descriptor in (entry / "fd").iterdir()}
        except OSError:
            continue
        if targets & inodes:
            pids.append(int(entry.name))
    return sorted(pids)


def machine_busy_s() -> float:
    """CPU seconds of the whole machine that were neither idle nor waiting for the disk."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / TICKS_PER_S
