"""What a slave costs: a master with one slave beside the same broker alone, in turns; the slave's CPU; sync replication.

    python bench/replication.py [--rounds 3] [--seconds 4] [--connections 1] [--in-flight 64]

A figure is the median over the rounds of CPU microseconds a message, of the master (rmqload.py) and of the slave (its CPU time
divided by the records that it appended meanwhile). Results go to bench/results/replication.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import servers
from compare import run_load
from servers import HERE, Server

SIZE_BYTES = 128
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "totalReplicas": "2"}


def call(address: str, code: int) -> dict[str, Any]:
    """One request in JSON; the body of its answer."""
    host, port = address.rsplit(":", 1)
    header = json.dumps({"code": code, "language": "PYTHON", "version": 513, "opaque": 7, "flag": 0}).encode()
    with socket.create_connection((host, int(port)), timeout=10) as link:
        link.sendall(struct.pack(">iI", 4 + len(header), len(header)) + header)
        stream = link.makefile("rb")
        total, head = struct.unpack(">ii", stream.read(8))
        data = stream.read(total - 4)
    body: dict[str, Any] = json.loads(data[head & 0xFFFFFF :])
    return body


def log_end(address: str) -> int:
    return int(call(address, 28)["table"]["commitLogMaxOffset"])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def slave_of(master: Server) -> Iterator[Server]:
    """A slave in a directory of its own, caught up with the master."""
    with servers.scratch("slave") as directory:
        (port,) = servers.free_ports(1)
        slave = Server(f"{master.name}-slave", port, directory)
        extra = {"brokerId": "1", "brokerRole": "SLAVE", "haListenPort": str(port + 1)}
        conf = servers.broker_properties(directory, port, sync_flush=False, extra=extra)
        nameserver = f"127.0.0.1:{master.nameserver_port}"
        try:
            slave.spawn(
                [sys.executable, "-m", "aerobee.ops", "broker", "-c", str(conf), "-n", nameserver],
                "broker.log",
            )
            slave.wait_for_port(port, "broker.log")
            catch_up(master, slave)
            yield slave
        finally:
            slave.stop()


def catch_up(master: Server, slave: Server, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while log_end(slave.address) < log_end(master.address):
        if time.monotonic() > deadline:
            raise SystemExit(f"the slave did not catch up within {timeout_s:.0f} s")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=64)
    options = parser.parse_args()
    load = (
        "--connections",
        str(options.connections),
        "--in-flight",
        str(options.in_flight),
        "--size",
        str(SIZE_BYTES),
    )
    window = ("--duration", str(options.seconds), "--warmup", "1")
    figures: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(servers.aerobee(name="alone"))
        asynchronous = stack.enter_context(servers.aerobee(name="async"))
        synchronous = stack.enter_context(servers.aerobee(name="sync", extra=SYNC))
        slaves = {
            "async": stack.enter_context(slave_of(asynchronous)),
            "sync": stack.enter_context(slave_of(synchronous)),
        }
        for _ in range(options.rounds):
            for master in (alone, asynchronous, synchronous):
                slave = slaves.get(master.name)
                before = (cpu_s(slave.pids[-1]), log_end(slave.address)) if slave is not None else (0.0, 0)
                start = log_end(master.address)
                where = ("--broker", master.address, "--server-pid", str(master.pids[-1]))
                result = run_load("rmqload.py", "send", *where, *load, *window)
                figures.setdefault(master.name, []).append(result["server_us_per_msg"])
                rates.setdefault(master.name, []).append(result["msg_per_s"])
                if slave is not None:
                    catch_up(master, slave)
                    record_bytes = (log_end(master.address) - start) / max(1, result["total"])
                    applied = (log_end(slave.address) - before[1]) / record_bytes
                    figures.setdefault(slave.name, []).append(
                        (cpu_s(slave.pids[-1]) - before[0]) / applied * 1e6
                    )
    table = {name: round(statistics.median(values), 2) for name, values in figures.items()}
    rate = {name: round(statistics.median(values)) for name, values in rates.items()}
    (HERE / "results" / "replication.json").write_text(
        json.dumps({"us_per_message": table, "per_second": rate}, indent=1)
    )
    print(json.dumps({"us_per_message": table, "per_second": rate}, indent=1))


if __name__ == "__main__":
    main()
