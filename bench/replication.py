"""What a slave costs: a master with one slave compared with the same broker alone, interleaved; the slave's CPU; sync replication.

    python bench/replication.py [--rounds 3] [--seconds 4] [--connections 1,4] [--in-flight 64] [--rate 1000] [--rocketmq] [--gib 0]

A figure is the median over the rounds of CPU microseconds a message, of the master (rmqload.py) and of the slave (its CPU time
divided by the records that it appended meanwhile); and of the milliseconds from the moment a message was due to its answer, at
--rate a second (0: not measured). --rocketmq measures RocketMQ's master with its slave in the same turns, asynchronously and with
SYNC_MASTER. --gib also measures an empty slave behind a log of that size (catch_up.py). "rows" are the ratios that
bench/README.md has goals for. "With another process" is the broker alone while a process that it does not know works 3 of 10 times. Results go to
bench/results/replication.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import servers
from compare import run_load
from servers import HERE, Server

SIZE_BYTES = 128
HEAP = "1g"  # of each JVM
WARM_MESSAGES = 200_000  # for a JVM; a tenth of it for Aerobee
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


def slave_end(slave: Server) -> int:
    """Where a slave's log ends. RocketMQ's slaves say it with their view of the master (907)."""
    if slave.name.startswith("rocketmq"):
        return int(call(slave.address, 907)["haClientRuntimeInfo"]["maxOffset"])
    return log_end(slave.address)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def slave_of(master: Server) -> Iterator[Server]:
    """A slave of the same product in a separate directory, caught up with the master."""
    with servers.scratch("slave") as directory:
        (port,) = servers.broker_ports(1)
        slave = Server(f"{master.name}-slave", port, directory)
        extra = {"brokerId": "1", "brokerRole": "SLAVE", "haListenPort": str(port + 1)}
        conf = servers.broker_properties(directory, port, sync_flush=False, extra=extra)
        nameserver = f"127.0.0.1:{master.nameserver_port}"
        command = [sys.executable, "-m", "aerobee.ops", "broker", "-c", str(conf), "-n", nameserver]
        if master.name.startswith("rocketmq"):
            (directory / "conf").mkdir()
            homes = [f"-Drocketmq.home.dir={directory}", f"-Duser.home={directory}"]
            memory = [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC", "-cp", f"{servers.ROCKETMQ_LIB}/*"]
            main_class = "org.apache.rocketmq.broker.BrokerStartup"
            command = ["java", *homes, *memory, main_class, "-c", str(conf), "-n", nameserver]
        try:
            slave.spawn(command, "broker.log")
            slave.wait_for_port(port, "broker.log")
            if master.name.startswith("rocketmq"):
                slave.wait_for_text("boot success", "broker.log")
            catch_up(master, slave)
            yield slave
        finally:
            slave.stop()


def catch_up(master: Server, slave: Server, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while slave_end(slave) < log_end(master.address):
        if time.monotonic() > deadline:
            raise SystemExit(f"{slave.name} did not catch up within {timeout_s:.0f} s")
        time.sleep(0.05)


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """A process that works 3 of 10 times, as a slave does, and has nothing to do with the master: what the machine takes for that."""
    work = (
        "import time\ndata = bytearray(1 << 16)\nwhile True:\n end = time.perf_counter() + 0.0003\n"
        " while time.perf_counter() < end: data[:] = bytes(data)\n time.sleep(0.0007)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", work])
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Figures:
    """What was measured, by name; each the median of its rounds."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[float]]] = {}

    def add(self, kind: str, name: str, value: float) -> None:
        """One round."""
        self._found.setdefault(kind, {}).setdefault(name, []).append(value)

    def medians(self) -> dict[str, dict[str, float]]:
        """By kind and name."""
        return {
            kind: {name: round(statistics.median(values), 3) for name, values in by_name.items()}
            for kind, by_name in self._found.items()
        }


def measure_rate(found: Figures, master: Server, slave: Server | None, shape: str, load: list[str]) -> None:
    """One round at one master: CPU of both, and the rate."""
    before = (cpu_s(slave.pids[-1]), slave_end(slave)) if slave is not None else (0.0, 0)
    start = log_end(master.address)
    where = ("--broker", master.address, "--server-pid", str(master.pids[-1]))
    result = run_load("rmqload.py", "send", *where, *load)
    found.add("us_per_message", f"{master.name} {shape}", result["server_us_per_msg"])
    found.add("per_second", f"{master.name} {shape}", result["msg_per_s"])
    if slave is not None:
        catch_up(master, slave)
        record_bytes = (log_end(master.address) - start) / max(1, result["total"])
        applied = (slave_end(slave) - before[1]) / record_bytes
        used = (cpu_s(slave.pids[-1]) - before[0]) / applied * 1e6
        found.add("us_per_message", f"{slave.name} {shape}", used)


def rows(found: dict[str, dict[str, float]], shapes: list[str]) -> dict[str, float]:
    """The ratios of the medians, as far as they were measured."""
    pairs = {"sync p99 / RocketMQ's": ("ack_ms", "sync p99", "rocketmq-sync p99")}
    for shape in shapes:
        pairs[f"master with a slave / alone, CPU, {shape}"] = (
            "us_per_message",
            f"async {shape}",
            f"alone {shape}",
        )
        pairs[f"slave / RocketMQ's, CPU, {shape}"] = (
            "us_per_message", f"async-slave {shape}", f"rocketmq-slave {shape}",
        )  # fmt: skip
        pairs[f"sync / async, rate, {shape}"] = ("per_second", f"sync {shape}", f"async {shape}")
    return {
        name: round(found[kind][one] / found[kind][other], 3)
        for name, (kind, one, other) in pairs.items()
        if found.get(kind, {}).get(one) and found[kind].get(other)
    }


def caught_up(gib: float) -> dict[str, float]:
    """What catch_up.py measures, and its ratios."""
    command = [sys.executable, str(HERE / "catch_up.py"), "--gib", str(gib)]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(HERE.parent)}
    )
    measured: dict[str, float] = json.loads((HERE / "results" / "catch_up.json").read_text())
    return measured


def measure_latency(found: Figures, master: Server, rate: int, seconds: float) -> None:
    """One round of answers at a fixed rate."""
    where = ("--broker", master.address, "--server-pid", str(master.pids[-1]))
    result = run_load("rmqload.py", "e2e", *where, "--rate", str(rate), "--duration", str(seconds))
    for percentile in ("p50", "p99"):
        found.add("ack_ms", f"{master.name} {percentile}", result["ack_latency_ms"][percentile])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--connections", default="1,4")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--rocketmq", action="store_true")
    parser.add_argument("--gib", type=float, default=0)
    options = parser.parse_args()
    found = Figures()
    with contextlib.ExitStack() as stack:
        masters = [
            stack.enter_context(servers.aerobee(name="alone", extra=servers.PATIENT)),
            stack.enter_context(servers.aerobee(name="async", extra=servers.PATIENT)),
            stack.enter_context(servers.aerobee(name="sync", extra={**SYNC, **servers.PATIENT})),
        ]
        if options.rocketmq:
            for name, extra in (("rocketmq", {}), ("rocketmq-sync", SYNC)):
                server = stack.enter_context(servers.rocketmq(extra={**extra, **servers.PATIENT}, heap=HEAP))
                server.name = name
                masters.append(server)
        slaves = {
            master.name: stack.enter_context(slave_of(master)) for master in masters if master.name != "alone"
        }
        for master in masters:
            count = WARM_MESSAGES if master.name.startswith("rocketmq") else WARM_MESSAGES // 10
            warm = ("--count", str(count), "--in-flight", "64", "--size", str(SIZE_BYTES))
            run_load("rmqload.py", "send", "--broker", master.address, *warm)
            if master.name in slaves:
                catch_up(master, slaves[master.name])
        for _ in range(options.rounds):
            for connections in options.connections.split(","):
                shape = f"{connections}x{options.in_flight}"
                load = ["--connections", connections, "--in-flight", str(options.in_flight)]
                load += ["--size", str(SIZE_BYTES), "--duration", str(options.seconds), "--warmup", "1"]
                for master in masters:
                    measure_rate(found, master, slaves.get(master.name), shape, load)
                with neighbour():
                    measure_rate(found, masters[0], None, f"{shape} with another process", load)
            for master in masters if options.rate else ():
                measure_latency(found, master, options.rate, options.seconds)
    medians = found.medians()
    shapes = [f"{connections}x{options.in_flight}" for connections in options.connections.split(",")]
    results = {**medians, "rows": rows(medians, shapes)}
    if options.gib:
        results["catch_up"] = caught_up(options.gib)
    table = json.dumps(results, indent=1)
    (HERE / "results" / "replication.json").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
