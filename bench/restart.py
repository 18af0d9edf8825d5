"""Time from the start of a killed broker to the first send that it accepts, with a large log and many queues, of both products.

    PYTHONPATH=. python bench/restart.py [--gib 50] [--queues 10000] [--tail-mib 256] [--starts 5] [--without-rocketmq]

The store is sparse (bench/big_store.py): 50 GB of log take some 300 MB of the disk. Each broker opens its copy, takes messages for
some seconds and is killed; then the files' pages are dropped from the page cache and it starts again. Measured are the wall-clock
and CPU time until a send is answered SEND_OK, and the bytes that the process reads meanwhile: from files by calls (`rchar`) and from
the disk, mapped files included (`read_bytes`). Results go to bench/results/restart.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.big_store import BigStore, drop_cached, topic_of
from tests.interop.rocketmq import Broker, NameServer, call

HERE = Path(__file__).resolve().parent
SENDS = 2_000  # before each kill
SETTLE_S = 65.0  # RocketMQ flushes its queues, and so writes its checkpoint, within 60 s
LOOK_S = 0.005
START_MAX_S = 600.0
DEFAULT_FILES = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "mappedFileSizeTimerLog": str(100 << 20),
    "flushConsumerOffsetInterval": "5000",
    "registerNameServerPeriod": "30000",
}


def send(address: str, number: int) -> bool:
    """Whether the broker answers one send with SEND_OK."""
    ext = {
        "producerGroup": "PG_restart", "topic": topic_of(number % 100), "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": str(round(time.time() * 1000)), "flag": "0", "properties": "",
        "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    try:
        header, _ = call(address, 10, ext, b"x" * 1024)
    except (OSError, ValueError):
        return False
    return bool(header["code"] == 0)


def used(pid: int) -> tuple[float, int, int]:
    """CPU seconds, bytes read by calls, bytes read from the disk."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return cpu_s, int(lines["rchar"]), int(lines["read_bytes"])


def first_send(broker: Broker) -> dict[str, float]:
    """Start the broker; what it took until a send is accepted."""
    began = time.monotonic()
    broker.start(wait=False)
    assert broker.process is not None
    while not send(broker.address, 0):
        if broker.process.poll() is not None or time.monotonic() - began > START_MAX_S:
            raise SystemExit(f"{broker.kind} did not start:\n{broker.tail()}")
        time.sleep(LOOK_S)
    took_s = time.monotonic() - began
    cpu_s, called, disk = used(broker.process.pid)
    return {
        "first_send_s": round(took_s, 3),
        "cpu_s": round(cpu_s, 2),
        "read_calls_mib": round(called / (1 << 20), 1),
        "read_disk_mib": round(disk / (1 << 20), 1),
    }


def measure(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    directory_of = os.environ.get("AEROBEE_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="restart-", dir=directory_of) as directory:
        root = Path(directory)
        store = root / "broker" / "store"
        BigStore(store, gib=options.gib, queues=options.queues, tail_mib=options.tail_mib).write()
        namesrv = NameServer("aerobee", root / "namesrv")
        broker = Broker(kind, root / "broker", namesrv.address, **DEFAULT_FILES)
        try:
            namesrv.start()
            first = first_send(broker)
            print(f"{kind}, opens the store: {first}", file=sys.stderr, flush=True)
            found = []
            for _ in range(options.starts):
                for number in range(SENDS):
                    send(broker.address, number)
                time.sleep(SETTLE_S)
                broker.kill()
                drop_cached(store)
                found.append(first_send(broker))
                print(f"{kind}: {found[-1]}", file=sys.stderr, flush=True)
        finally:
            broker.kill()
            namesrv.kill()
    return {name: statistics.median(each[name] for each in found) for name in found[0]} | {
        "starts": len(found)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=int, default=50)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--tail-mib", type=int, default=256)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--without-rocketmq", action="store_true")
    options = parser.parse_args()
    kinds = ("aerobee",) if options.without_rocketmq else ("aerobee", "rocketmq")
    found: dict[str, Any] = {kind: measure(kind, options) for kind in kinds}
    if len(found) == 2:
        ours, theirs = found["aerobee"], found["rocketmq"]
        found["ratio"] = {
            name: round(ours[name] / theirs[name], 2) for name in ("first_send_s", "cpu_s", "read_disk_mib")
        }
    found["store"] = {"gib": options.gib, "queues": options.queues, "tail_mib": options.tail_mib}
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "restart.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
