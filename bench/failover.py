"""Time without service when a master dies: from kill -9 to the next send that is accepted, by a client that is connected.

    PYTHONPATH=. python bench/failover.py [--kills 20] [--rocketmq-kills 5]

Three controllers and a group of three, all with the timings that they have by default, replicated synchronously. 8 senders of our client
send on; a gap is what lies between the kill and the first answer SEND_OK to a send that began behind it (an answer to an earlier one
may have been on its way already). The killed broker is started again, and is in
sync, before the next kill. Both products are driven by the same client. Results go to bench/results/failover.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aerobee.client import ClientConfig, Producer, ProducerConfig, SendStatus
from aerobee.errors import AerobeeError
from aerobee.message import Message
from tests.interop.rocketmq import Broker, Controller, NameServer, call
from tests.ports import free_ports
from tests.waiting import wait_for

HERE = Path(__file__).resolve().parent
NAME = "broker-f"
SENDERS = 8


class Replica(Broker):
    """Ready when it answers."""

    def is_ready(self) -> bool:
        try:
            call(self.address, 28, {})
        except OSError:
            return False
        return True


class Group:
    """A NameServer, three controllers, three brokers, each a process."""

    def __init__(self, kind: str, root: Path, **config: str) -> None:
        """`config`: further settings of each broker."""
        self.namesrv = NameServer("aerobee", root / "namesrv")
        ports = free_ports(3)
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        self.controllers = [
            Controller(kind, root / f"controller{number}", peers, f"n{number}", port)
            for number, port in enumerate(ports)
        ]
        addresses = ";".join(each.address for each in self.controllers)
        self.brokers = [
            Replica(
                kind,
                root / f"broker{number}",
                self.namesrv.address,
                brokerName=NAME,
                enableControllerMode="true",
                controllerAddr=addresses,
                **{"allAckInSyncStateSet": "true", **config},
            )
            for number in range(3)
        ]

    def start(self) -> None:
        for servers in ([self.namesrv], self.controllers, self.brokers):
            for server in servers:
                server.start(wait=False)
            for server in servers:
                server.wait_ready()
        self.wait_whole()

    def table(self) -> dict[str, Any]:
        """The group as the leading controller has it; {} while there is none."""
        try:
            header, _ = call(self.controllers[0].address, 1005, {})
            leader = header["extFields"]["controllerLeaderAddress"]
            _, body = call(leader, 1006, {}, json.dumps([NAME]).encode())
            found: dict[str, Any] = json.loads(body)["replicasInfoTable"][NAME]
        except (OSError, KeyError, ValueError):
            return {}
        return found

    def wait_whole(self) -> None:
        wait_for("three brokers in sync", lambda: len(self.table().get("inSyncReplicas", ())) == 3, 180)

    def master(self) -> Replica:
        address = self.table()["masterAddress"]
        return next(each for each in self.brokers if each.address == address)

    def kill(self) -> None:
        for server in (*self.brokers, *self.controllers, self.namesrv):
            server.kill()


async def gaps(group: Group, kills: int) -> list[float]:
    """Seconds without service of each kill."""
    answered: list[tuple[float, float]] = []  # when each send began, and when it was accepted
    is_over = asyncio.Event()
    client = ClientConfig(route_refresh_s=30.0)

    async def send(producer: Producer) -> None:
        while not is_over.is_set():
            began_s = time.monotonic()
            try:
                if (await producer.send(Message("t", b"x" * 128))).status is SendStatus.SEND_OK:
                    answered.append((began_s, time.monotonic()))
            except AerobeeError:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.002)

    found = []
    config = ProducerConfig(send_timeout_s=1.0, retry_count_max=0)
    async with Producer(group.namesrv.address, "PG_failover", config=config, client=client) as producer:
        senders = [asyncio.create_task(send(producer)) for _ in range(SENDERS)]
        for _ in range(kills):
            answered.clear()
            while len(answered) < 200:  # noqa: ASYNC110  the senders make it true
                await asyncio.sleep(0.01)
            master = await asyncio.to_thread(group.master)
            killed_s = time.monotonic()
            master.kill()
            dead_s = time.monotonic()
            while not (behind := [end for began, end in answered if began > dead_s]):
                answered.clear()
                await asyncio.sleep(0.001)
            found.append(min(behind) - killed_s)
            print(f"{master.kind}: {found[-1]:.2f} s", file=sys.stderr, flush=True)
            await asyncio.to_thread(master.start)
            await asyncio.to_thread(group.wait_whole)
        is_over.set()
        await asyncio.gather(*senders)
    return found


def measure(kind: str, kills: int) -> dict[str, float]:
    """p50, p99 and the longest."""
    with tempfile.TemporaryDirectory(prefix="failover-") as directory:
        group = Group(kind, Path(directory))
        try:
            group.start()
            found = sorted(asyncio.run(gaps(group, kills)))
        finally:
            group.kill()
    return {
        "kills": len(found),
        "p50_s": round(statistics.median(found), 2),
        "p99_s": round(found[min(len(found) - 1, int(len(found) * 0.99))], 2),
        "shortest_s": round(found[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rocketmq-kills", type=int, default=5, help="0: RocketMQ is not measured")
    options = parser.parse_args()
    found = {
        kind: measure(kind, kills)
        for kind, kills in (("aerobee", options.kills), ("rocketmq", options.rocketmq_kills))
        if kills
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "failover.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
