"""How long a broker with a large store takes until it listens: after a clean stop, and after kill -9.

    python tests/survival/clean_start.py [--gigabytes 10] [--message-bytes 4096] [--queues 64]

Fills a store with whole records, their queue entries and index keys (the store's own code, no broker), stops it, drops the
files from the page cache, and starts the broker's process on it. Reported: seconds from the start of the process to an
open port and CPU seconds of it, for an empty store, for the large one after a clean stop with nothing cached and again
with what is cached then, and after kill -9. The directory is removed afterwards; nothing is written when less than
--keep-free gigabytes of disk would be left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "bench"
sys.path[:0] = [str(REPOSITORY), str(BENCH)]

import servers  # noqa: E402

from aerobee.clock import SystemClock  # noqa: E402
from aerobee.message import encode_properties, pack_host  # noqa: E402
from aerobee.store.files.config import StoreConfig  # noqa: E402
from aerobee.store.files.disk import RealDisk  # noqa: E402
from aerobee.store.log.stored_message import StoredMessage  # noqa: E402
from aerobee.store.message_store import MessageStore  # noqa: E402
from tests.survival.process_figures import look_at  # noqa: E402

TOPIC = "large"
OPENED = "opened after a "
GIGABYTE = 1_000_000_000
APPENDS_AT_ONCE = 64  # between two event loop iterations, which flush
UNFLUSHED_BYTES_MAX = 256 << 20
START_TIMEOUT_S = 120.0
POLL_S = 0.005
HOST = pack_host("127.0.0.1", 10911)


class Fault(Exception):
    """The start failed or was no clean one."""


async def fill(directory: Path, size: int, message_bytes: int, queues: int) -> int:
    """Write a store of about so many bytes and stop it in order. Returns the number of messages."""
    config = StoreConfig(store_path_root_dir=str(directory), disk_max_used_space_ratio=95)
    store = MessageStore(config, disk=RealDisk(), clock=SystemClock())
    store.load()
    await store.start()
    body = os.urandom(message_bytes)
    number = 0
    while store.log.end < size:
        for _ in range(APPENDS_AT_ONCE):
            number += 1
            key = f"K{number}"
            store.append(
                StoredMessage(
                    topic=TOPIC,
                    queue_id=number % queues,
                    body=body,
                    properties=encode_properties({"UNIQ_KEY": key}).encode(),
                    born_host=HOST,
                    index_keys=(key,),
                )
            )
        await asyncio.sleep(0)
        if store.unflushed_bytes > UNFLUSHED_BYTES_MAX:
            flushed = asyncio.Event()
            store.flushed.when(store.log.end, lambda _, flushed=flushed: flushed.set())
            await flushed.wait()
    await store.stop()
    return number


def bytes_of(directory: Path) -> int:
    """Bytes on the disk of all files below."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def forget(directory: Path) -> None:
    """Drop the files' clean pages from the cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def started(server: servers.Server, command: list[str]) -> dict[str, float]:
    """Start the broker and return when its port is open, with what that took. Raises Fault."""
    began = time.monotonic()
    server.spawn(command, "broker.log")
    process = server.processes[-1]
    while True:
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
            break
        except OSError:
            if process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                raise Fault((server.directory / "broker.log").read_text(errors="replace")[-2000:]) from None
            time.sleep(POLL_S)
    return {"seconds": round(time.monotonic() - began, 3), "cpu_s": round(look_at(process.pid).cpu_s, 2)}


def ended(server: servers.Server, how: signal.Signals) -> None:
    process = server.processes.pop()
    process.send_signal(how)
    process.wait(servers.STOP_TIMEOUT_S)


def what_the_log_says(server: servers.Server) -> str:
    """The last line about opening the store."""
    lines = (server.directory / "broker.log").read_text(errors="replace").splitlines()
    return next((line[line.index(OPENED) :] for line in reversed(lines) if OPENED in line), "")


def measure(size: int, message_bytes: int, queues: int, *, is_realtime: bool = False) -> dict[str, Any]:
    """All starts, one after the other. Raises Fault."""
    found: dict[str, Any] = {"queues": queues, "message_bytes": message_bytes}
    with servers.aerobee(extra={"diskMaxUsedSpaceRatio": "95"}) as server:
        command = [str(part) for part in server.processes[-1].args]  # type: ignore[union-attr]
        if is_realtime:
            command = ["chrt", "-f", "1", *command]
        store = server.directory / "store"
        ended(server, signal.SIGTERM)
        found["empty"] = started(server, command)
        ended(server, signal.SIGTERM)
        shutil.rmtree(store)
        found["messages"] = asyncio.run(fill(store, size, message_bytes, queues))
        found["log_bytes"] = size
        forget(store)
        found["store_bytes"] = bytes_of(store)
        for name, how in (("clean_uncached", signal.SIGTERM), ("clean_cached", signal.SIGKILL)):
            found[name] = started(server, command)
            if "clean stop" not in what_the_log_says(server):
                raise Fault(f"not a clean start: {what_the_log_says(server)}")
            found["clean_log"] = what_the_log_says(server)
            ended(server, how)
        found["after_kill"] = {
            **started(server, command),
            "log": what_the_log_says(server).split(": ", 1)[-1],
        }
        sent = subprocess.run(
            [sys.executable, str(BENCH / "rmqload.py"), "send", "--broker", server.address, "--count", "1"],
            capture_output=True,
            timeout=60,
            check=False,
        )
        if sent.returncode:
            raise Fault(f"it listens, but takes no message: {sent.stderr.decode()[-500:]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--message-bytes", type=int, default=4096)
    parser.add_argument("--queues", type=int, default=64)
    parser.add_argument(
        "--realtime", action="store_true", help="the broker goes before other work of the machine (root)"
    )
    parser.add_argument("--keep-free", type=float, default=20, help="gigabytes")
    parser.add_argument("--out", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    size = int(options.gigabytes * GIGABYTE)
    free = shutil.disk_usage(os.environ.get("AEROBEE_BENCH_DIR", "/tmp")).free
    if free - size * 1.2 < options.keep_free * GIGABYTE:
        parser.error(f"{free / GIGABYTE:.0f} GB are free: {size / GIGABYTE:.1f} GB would leave too little")
    try:
        text = json.dumps(
            measure(size, options.message_bytes, options.queues, is_realtime=options.realtime), indent=1
        )
    except (Fault, servers.ServerFailed) as fault:
        print(f"FAULT: {fault}", file=sys.stderr)
        sys.exit(1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
