"""Time without a master when a master with a large log dies: from kill -9 to the next send that the new master accepts.

    PYTHONPATH=. python bench/promotion.py [--gib 50] [--queues 1000] [--kills 20]

As bench/failover.py, three controllers and a group of three with their default timings, but each replica has a sparse log of 50 GB
(bench/big_store.py), of which nothing is in memory: before each kill the pages of all stores are dropped from the page cache. The
first record of the log is a timer that waits, so that a promotion that reads the log from the oldest pending timer on reads all
of it. Results go to bench/results/promotion.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.big_store import BigStore, drop_cached
from bench.failover import Group, Replica, gaps
from bench.restart import DEFAULT_FILES
from tests.waiting import wait_for

HERE = Path(__file__).resolve().parent


class BigGroup(Group):
    """A group of which each replica has the same large log."""

    def prepare(self, gib: int, queues: int, tail_mib: int) -> None:
        """Write the store, let one broker take it as master, and give the others a copy."""
        first, *others = self.brokers
        BigStore(first.store, gib=gib, queues=queues, tail_mib=tail_mib).write()
        servers = (self.namesrv, *self.controllers)
        for server in (*servers, first):
            server.start(wait=False)
        for server in servers:
            server.wait_ready()
        wait_for("a master", lambda: self.table().get("masterAddress") == first.address, 300)
        first.wait_ready()
        wait_for("a timer checkpoint", (first.store / "config" / "timercheck").exists, 600)
        first.stop()
        for broker in others:
            broker.store.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", "--sparse=always", first.store, broker.store], check=True)
            for path in broker.store.glob("brokerIdentity*"):
                path.unlink()
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_ready()
        self.wait_whole()

    def master(self) -> Replica:
        found = super().master()
        for broker in self.brokers:
            drop_cached(broker.store)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=int, default=50)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--tail-mib", type=int, default=64)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(
        prefix="promotion-", dir=os.environ.get("AEROBEE_BENCH_DIR")
    ) as directory:
        group = BigGroup("aerobee", Path(directory), **DEFAULT_FILES)
        try:
            group.prepare(options.gib, options.queues, options.tail_mib)
            found = sorted(asyncio.run(gaps(group, options.kills)))
        finally:
            group.kill()
    result = {
        "gib": options.gib,
        "queues": options.queues,
        "kills": len(found),
        "p50_s": round(statistics.median(found), 2),
        "p99_s": round(found[min(len(found) - 1, int(len(found) * 0.99))], 2),
        "shortest_s": round(found[0], 2),
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "promotion.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
