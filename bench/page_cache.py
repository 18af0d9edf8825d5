"""The machine's memory as it is after hours of work: full of cached file pages, which new ones replace.

A broker takes new pages all the time: a page of its log holds 17 small messages. On a virtual machine untouched
memory is allocated by the host at its first touch, which costs several microseconds a page (`python
bench/page_cache.py` prints it), as much as everything else that is done for a batch of messages. Whichever server
happens to get such pages looks slow; here it is none of them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STEP_BYTES = 1 << 20
LEFT_FREE_BYTES = 1 << 30
PAGE_BYTES = mmap.PAGESIZE
LOOK_EVERY = 64  # steps between two looks at what is free
SMALL_BYTES = 64 << 20
MADV_POPULATE_WRITE = 23


def memory_bytes(key: str) -> int:
    """A line of /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise KeyError(key)


@contextlib.contextmanager
def filled() -> Iterator[None]:
    """Fill free memory with the pages of a file of holes, which cause no disk access; given up as others need them."""
    directory = os.environ.get("AEROBEE_BENCH_DIR", tempfile.gettempdir())
    with tempfile.TemporaryFile(dir=directory) as file:
        total = memory_bytes("MemTotal")
        os.ftruncate(file.fileno(), total)
        buffer = bytearray(STEP_BYTES)
        for step in range(total // STEP_BYTES):
            if step % LOOK_EVERY == 0 and memory_bytes("MemFree") < LEFT_FREE_BYTES:
                break
            os.preadv(file.fileno(), [buffer], step * STEP_BYTES)
        yield


def touch_us(size: int) -> float:
    """CPU microseconds for each page of 4 KiB of memory that is requested, touched, and given back."""
    with mmap.mmap(-1, size) as memory:
        started = time.process_time()
        memory.madvise(MADV_POPULATE_WRITE)
        return (time.process_time() - started) / (size // PAGE_BYTES) * 1e6


def main() -> None:
    """Print what a page costs that was just given back, and one of those that have long not been used."""
    again = min(touch_us(SMALL_BYTES) for _ in range(4))
    half = memory_bytes("MemAvailable") // 2 // PAGE_BYTES * PAGE_BYTES
    print(f"{again:.2f} us a page just given back, {touch_us(half):.2f} us a page of half the free memory")


if __name__ == "__main__":
    main()
