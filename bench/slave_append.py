"""What a slave's store does with a master's log: the CPU of its log, queues and index, a message, without sockets.

    PYTHONPATH=. python bench/slave_append.py [--messages 200000] [--rounds 5] [--backends native,python]

A master's log is made of messages of 128 bytes in four queues, with the key that clients give each one, and handed to RawReceiver in
pieces of 32 KiB, as HA frames bring them. Microseconds of CPU a message: the least of the rounds, each into a new store; next to it the
page faults. A first touch of a new file's page is a fault that the system serves: part of the price.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import tempfile
import time
from pathlib import Path

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.broker.replication.raw_receiver import RawReceiver
from aerobee.clock import SystemClock
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore

HERE = Path(__file__).resolve().parent
PIECE_BYTES = 32 << 10
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
BODY = bytes(128)


def opened(root: Path) -> MessageStore:
    """A store with the sizes that a broker has by default."""
    config = StoreConfig(store_path_root_dir=str(root))
    store = MessageStore(config, disk=RealDisk(), clock=SystemClock(), store_host=lambda: HOST)
    store.load()
    return store


def masters_log(root: Path, count: int) -> bytes:
    """The log of a master with so many messages."""
    store, rng = opened(root), random.Random(1)
    for number in range(count):
        text = f"UNIQ_KEY\x01{rng.getrandbits(128):032X}\x02WAIT\x01true\x02".encode()
        message = StoredMessage(
            topic="bench", queue_id=number % 4, body=BODY, properties=text, born_timestamp=1, born_host=HOST
        )
        store.append(message)
    log = b"".join(
        bytes(segment.file.buffer[: min(segment.end, store.log.end) - segment.base])
        for segment in store.log.segments
    )
    asyncio.run(store.abandon())
    return log


def one_round(root: Path, log: bytes, count: int, backend: str) -> tuple[float, float]:
    """CPU microseconds and page faults a message."""
    store = opened(root)
    make = choose_backend(backend).make_raw_appender
    receiver = RawReceiver(store, native=make(store) if make is not None else None)
    before, began = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt, time.thread_time()
    for at in range(0, len(log), PIECE_BYTES):
        receiver.take(at, log[at : at + PIECE_BYTES])
    used = time.thread_time() - began
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert store.log.end == len(log)
    assert sum(store.max_offset("bench", queue) for queue in range(4)) == count
    asyncio.run(store.abandon())
    return used / count * 1e6, faults / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", default="native,python")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="slave-append-") as directory:
        log = masters_log(Path(directory, "master"), options.messages)
        for backend in options.backends.split(","):
            rounds = [
                one_round(Path(directory, f"{backend}{number}"), log, options.messages, backend)
                for number in range(options.rounds)
            ]
            cpu_us, faults = min(rounds)
            found[backend] = {"us_per_message": round(cpu_us, 3), "faults_per_message": round(faults, 4)}
    table = json.dumps(found, indent=1)
    (HERE / "results" / "slave_append.json").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
