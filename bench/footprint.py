"""What a broker costs when it does nothing, when it starts, and in memory under load.

    python bench/footprint.py [--idle 30] [--load 20] [--servers aerobee-up,aerobee,rocketmq]

For each server, one after the other on an empty store: CPU seconds of the broker from its start to its first answer (bytecode
is compiled before, as by an installation),
memory of NameServer and broker idle, the broker's share of a core while idle, memory without file pages during and after
a load of 64 in flight. Results go to bench/results/footprint.json.
"""

from __future__ import annotations

import argparse
import compileall
import os
import threading
import time
from pathlib import Path
from typing import Any

import results_file
import servers
from compare import note, run_load
from servers import Server

SETTLE_S = 5.0  # after the first answer, before idleness is measured
TICKS = os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    """Resident, its share of it where pages are shared with others (PSS), and without file pages, MiB."""
    text = Path(f"/proc/{pid}/status").read_text() + Path(f"/proc/{pid}/smaps_rollup").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def mib(key: str) -> float:
        return int(fields[key].split()[0]) / 1024

    return {"rss": mib("VmRSS"), "pss": mib("Pss"), "anonymous": mib("RssAnon")}


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def total(server: Server, key: str) -> float:
    return sum(memory_mib(pid)[key] for pid in server.pids)


def measure(name: str, idle_s: float, load_s: float) -> dict[str, Any]:
    """Start a server and measure it; nothing else should run meanwhile."""
    with getattr(servers, name.replace("-", "_"))() as server:
        broker = server.pids[-1]
        run_load("rmqload.py", "send", "--broker", server.address, "--count", "1")
        start_cpu_s = cpu_seconds(broker)
        time.sleep(SETTLE_S)
        idle = {key: total(server, key) for key in ("rss", "pss", "anonymous")}
        before, began = cpu_seconds(broker), time.monotonic()
        time.sleep(idle_s)
        idle_share = (cpu_seconds(broker) - before) / (time.monotonic() - began)
        samples: list[float] = []
        stop = threading.Event()

        def sample() -> None:
            while not stop.wait(0.5):
                samples.append(total(server, "anonymous"))

        sampler = threading.Thread(target=sample)
        sampler.start()
        shape = ("--connections", "4", "--in-flight", "64", "--duration", str(load_s))
        run_load("rmqload.py", "send", "--broker", server.address, *shape)
        stop.set()
        sampler.join()
        result = {
            "start_cpu_s": start_cpu_s,
            "idle_rss_mib": idle["rss"],
            "idle_pss_mib": idle["pss"],
            "idle_anonymous_mib": idle["anonymous"],
            "idle_cpu_percent": idle_share * 100,
            "load_anonymous_mib": {"first": samples[0], "max": max(samples), "last": samples[-1]},
        }
    note(f"{name}: {result}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--idle", type=float, default=30.0, help="seconds")
    parser.add_argument("--load", type=float, default=20.0, help="seconds")
    parser.add_argument("--servers", default="aerobee-up,aerobee,rocketmq")
    options = parser.parse_args()
    compileall.compile_dir(servers.REPOSITORY / "aerobee", quiet=1)
    found = {name: measure(name, options.idle, options.load) for name in options.servers.split(",")}
    results_file.write("footprint", found)
    for name, result in found.items():
        print(name, result)


if __name__ == "__main__":
    main()
