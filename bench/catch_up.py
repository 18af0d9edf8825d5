"""How fast an empty slave takes a long log, compared with `cp` of the same files; and what a sender notices meanwhile.

    PYTHONPATH=. python bench/catch_up.py [--gib 5]

The log lies in the page cache, for slave and cp alike, and what was written before is on the disk: a system that holds too much which is
not slows every writer down to its disk. $TMPDIR says where; /dev/shm leaves the disk out. The rate counts from the start of the slave's
process until its log ends where the master's does. A sender sends 100 messages of 1 KiB a second all the time; its p99 alone and during
the copy. CPU seconds of both brokers say whether they worked or waited. Results go to bench/results/catch_up.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from aerobee.client import Producer, ProducerConfig
from aerobee.message import Message
from tests.interop.replica_processes import Slave
from tests.interop.rocketmq import Broker, NameServer, call

HERE = Path(__file__).resolve().parent
BODY = bytes(range(256)) * 4096  # 1 MiB that is sent as it is
FILES = {"mappedFileSizeCommitLog": str(1 << 30)}


def log_end(broker: Broker) -> int:
    _, body = call(broker.address, 28, {})
    return int(json.loads(body)["table"]["commitLogMaxOffset"])


async def fill(namesrv: str, count: int) -> None:
    """So many messages of a MiB."""
    config = ProducerConfig(compress_over_bytes=1 << 30, send_timeout_s=30.0)
    async with Producer(namesrv, "PG_fill", config=config) as producer:
        for first in range(0, count, 16):
            await asyncio.gather(
                *(producer.send(Message("large", BODY)) for _ in range(min(16, count - first)))
            )


async def send_until(namesrv: str, is_over: asyncio.Event) -> list[float]:
    """Latencies of 100 sends a second."""
    took: list[float] = []
    async with Producer(namesrv, "PG_probe") as producer:
        while not is_over.is_set():
            begun = time.monotonic()
            await producer.send(Message("small", b"x" * 1024))
            took.append(time.monotonic() - begun)
            await asyncio.sleep(max(0.0, 0.01 - took[-1]))
    return took


def cpu_s(broker: Broker) -> tuple[float, float]:
    """CPU seconds of a broker's process: its own and the system's for it."""
    assert broker.process is not None
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def p99_ms(took: list[float]) -> float:
    return round(sorted(took)[int(len(took) * 0.99)] * 1000, 2)


async def measure(root: Path, gib: float) -> dict[str, float]:
    namesrv = NameServer("aerobee", root / "namesrv")
    master = Broker("aerobee", root / "master", namesrv.address, **FILES)
    slave = Slave("aerobee", root / "slave", namesrv.address, brokerRole="SLAVE", brokerId="1", **FILES)
    try:
        await asyncio.to_thread(namesrv.start)
        await asyncio.to_thread(master.start)
        begun = time.monotonic()
        await fill(namesrv.address, round(gib * 1024))
        print(f"filled in {time.monotonic() - begun:.1f} s", flush=True)
        is_over = asyncio.Event()
        alone = asyncio.create_task(send_until(namesrv.address, is_over))
        await asyncio.sleep(5)
        is_over.set()
        before = await alone
        size = sum(path.stat().st_size for path in (master.store / "commitlog").iterdir())
        cp_s = []
        for _ in range(2):
            await asyncio.to_thread(os.sync)
            begun = time.monotonic()
            await asyncio.to_thread(
                subprocess.run, ["cp", "-r", str(master.store / "commitlog"), str(root / "copy")], check=True
            )
            cp_s.append(time.monotonic() - begun)
            shutil.rmtree(root / "copy")
        is_over.clear()
        during = asyncio.create_task(send_until(namesrv.address, is_over))
        end = log_end(master)
        await asyncio.to_thread(os.sync)
        before_cpu = cpu_s(master)
        begun = time.monotonic()
        await asyncio.to_thread(lambda: slave.start(wait=False))
        first = 0.0
        while True:
            await asyncio.sleep(0.05)
            try:
                at = await asyncio.to_thread(log_end, slave)
            except (OSError, ValueError, KeyError):
                continue
            if at and not first:
                first = time.monotonic()
            if at >= end:
                break
        took_s = time.monotonic() - begun
        used = [now - then for now, then in zip(cpu_s(master), before_cpu, strict=True)]
        slave_used = cpu_s(slave)
        is_over.set()
        latencies = await during
        gib = end / (1 << 30)
        return {
            "slave_over_cp": round(end / took_s * min(cp_s) / size, 3),
            "slave_over_cp_once_it_runs": round(
                end / max(0.01, begun + took_s - first) * min(cp_s) / size, 3
            ),
            "sender_p99_meanwhile_over_alone": round(p99_ms(latencies) / p99_ms(before), 2),
            "master_cpu_s_per_gib": round(sum(used) / gib, 3),
            "slave_cpu_s_per_gib": round(sum(slave_used) / gib, 3),  # with the start of its process
            "log_mib": round(end / (1 << 20)),
            "cp_mib_s": round(size / (1 << 20) / min(cp_s)),
            "slave_mib_s": round(end / (1 << 20) / took_s),
            "slave_mib_s_once_it_runs": round(end / (1 << 20) / max(0.01, begun + took_s - first)),
            "master_cpu_s": round(used[0], 2),
            "master_system_cpu_s": round(used[1], 2),
            "slave_cpu_s": round(slave_used[0], 2),
            "slave_system_cpu_s": round(slave_used[1], 2),
            "sender_p99_ms_alone": p99_ms(before),
            "sender_p99_ms_meanwhile": p99_ms(latencies),
        }
    finally:
        for server in (slave, master, namesrv):
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catch-up-") as directory:
        found = asyncio.run(measure(Path(directory), options.gib))
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "catch_up.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
