"""What the leading controller costs with many groups, and how fast it changes a sync state set.

    PYTHONPATH=. python bench/controllers.py [--groups 1000] [--seconds 20]

Three controllers as processes, each with a connection of every broker of --groups groups of three, which send a heartbeat each
second as brokers do. While that goes on, a process of its own reports as masters do changes of their sync state sets (1001), one
after the other. CPU is the leader's share of one core, memory its resident bytes; the load runs beside it on the same machine.
Where another controller is elected meanwhile (a machine that lets the leader wait for a second), the changes go on at that one, and
`elections` says how often. Results go to bench/results/controllers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from aerobee.clock import SystemClock
from aerobee.ha.controller.codes import ControllerCode
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from tests.interop.rocketmq import Controller, call, free_port
from tests.waiting import wait_for

HERE = Path(__file__).resolve().parent
CLUSTER = "DefaultCluster"
REPLICAS = 3


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def name_of(group: int) -> str:
    return f"group-{group:04d}"


class Brokers:
    """The brokers' side of the conversation, without brokers."""

    def __init__(self, controllers: list[str], leader: str, groups: int) -> None:
        self.controllers = controllers
        self.leader = leader
        self.groups = groups
        # A client has one connection an address: each broker is a client of its own.
        self.clients = [
            RemotingClient(clock=SystemClock(), network=AsyncioNetwork()) for _ in range(groups * REPLICAS)
        ]

    async def ask(
        self, client: RemotingClient, code: int, ext: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        while True:
            reply = await client.invoke(self.leader, RemotingCommand(code, ext, body), timeout_s=30)
            if reply.code != ControllerCode.NOT_LEADER:
                break
            self.leader = await asyncio.to_thread(leader_of, self.controllers)
        assert reply.code == 0, (code, reply)
        return reply

    async def register(self, group: int) -> None:
        """Ids for three brokers, the first of them master."""
        named = {"clusterName": CLUSTER, "brokerName": name_of(group)}
        for replica in range(REPLICAS):
            client = self.clients[group * REPLICAS + replica]
            broker_id = str(replica + 1)
            code = f"{name_of(group)}-{replica}"
            address = f"10.{group >> 8}.{group & 255}.{replica + 1}:10911"
            await self.ask(
                client, RequestCode.CONTROLLER_APPLY_BROKER_ID,
                {**named, "appliedBrokerId": broker_id, "registerCheckCode": f"{address};{code}"},
            )  # fmt: skip
            await self.ask(
                client, RequestCode.CONTROLLER_REGISTER_BROKER,
                {**named, "brokerId": broker_id, "brokerAddress": address},
            )  # fmt: skip
            await self.beat(group, replica)
        await self.ask(
            self.clients[group * REPLICAS],
            RequestCode.CONTROLLER_ELECT_MASTER,
            {**named, "brokerId": "1", "designateElect": "false"},
        )

    async def beat(self, group: int, replica: int) -> None:
        """A heartbeat to every controller."""
        client = self.clients[group * REPLICAS + replica]
        ext = {
            "clusterName": CLUSTER, "brokerName": name_of(group), "brokerId": str(replica + 1),
            "brokerAddr": f"10.{group >> 8}.{group & 255}.{replica + 1}:10911", "epoch": "1", "maxOffset": "0",
            "confirmOffset": "0", "heartbeatTimeoutMills": "10000", "electionPriority": "1",
        }  # fmt: skip
        for controller in self.controllers:
            await client.invoke_oneway(controller, RemotingCommand(RequestCode.BROKER_HEARTBEAT, ext))

    async def beat_for(self, seconds: float) -> None:
        """Each broker's heartbeats, a second apart, spread over the second."""
        end = time.monotonic() + seconds

        async def one(group: int, replica: int) -> None:
            await asyncio.sleep(random.random())
            while time.monotonic() < end:
                await self.beat(group, replica)
                await asyncio.sleep(1.0)

        await asyncio.gather(*(one(group, each) for group in range(self.groups) for each in range(REPLICAS)))

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))


def leader_of(controllers: list[str]) -> str:
    """The leader's address, waited for."""

    def found() -> str | None:
        for address in controllers:
            try:
                header, _ = call(address, RequestCode.CONTROLLER_GET_METADATA_INFO, {})
            except OSError:
                continue
            if header["extFields"].get("isLeader") == "true":
                return address
        return None

    return wait_for("a leading controller", found, 60)


async def change_sets(controllers: list[str], groups: int, seconds: float) -> tuple[list[float], int]:
    """Seconds that each change of a sync state set took, one after the other, and how often another leader had to be found."""
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    leader, elections = leader_of(controllers), 0
    epochs = [1] * groups  # the election was the first change
    end = time.monotonic() + seconds
    took: list[float] = []
    number = 0
    try:
        while time.monotonic() < end:
            group = number % groups
            members = [1, 2, 3] if (number // groups) % 2 else [1, 2]
            body = {"syncStateSet": members, "syncStateSetEpoch": epochs[group]}
            ext = {"brokerName": name_of(group), "masterBrokerId": "1", "masterEpoch": "1"}
            request = RemotingCommand(
                RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, json.dumps(body).encode()
            )
            begun = time.monotonic()
            reply = await client.invoke(leader, request, timeout_s=30)
            if reply.code == ControllerCode.NOT_LEADER:
                leader = await asyncio.to_thread(leader_of, controllers)
                elections += 1
                continue
            took.append(time.monotonic() - begun)
            assert reply.code == 0, reply
            epochs[group] = json.loads(reply.body)["syncStateSetEpoch"]
            number += 1
            await asyncio.sleep(0.02)
    finally:
        await client.close()
    return took, elections


def change_sets_apart(controllers: list[str], groups: int, seconds: float) -> tuple[list[float], int]:
    """change_sets() in this process."""
    return asyncio.run(change_sets(controllers, groups, seconds))


async def measure(controllers: list[Controller], groups: int, seconds: float) -> dict[str, float]:
    addresses = [each.address for each in controllers]
    brokers = Brokers(addresses, leader_of(addresses), groups)
    try:
        for first in range(0, groups, 50):
            await asyncio.gather(*(brokers.register(each) for each in range(first, min(groups, first + 50))))
        keeping = asyncio.create_task(brokers.beat_for(seconds + 10))
        await asyncio.sleep(3)
        leader = await asyncio.to_thread(leader_of, addresses)
        (leading,) = (each for each in controllers if each.address == leader)
        assert leading.process is not None
        pid = leading.process.pid
        before, begun = cpu_s(pid), time.monotonic()
        await asyncio.sleep(seconds / 2)
        cores = (cpu_s(pid) - before) / (time.monotonic() - begun)
        # In a process of its own: beside the heartbeats of all brokers it would measure this event loop.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
            loop = asyncio.get_running_loop()
            took, elections = await loop.run_in_executor(
                apart, change_sets_apart, addresses, groups, seconds / 2
            )
        took.sort()
        await keeping
        return {
            "groups": groups,
            "leader_cores": round(cores, 3),
            "leader_mib": round(resident_bytes(pid) / (1 << 20), 1),
            "changes": len(took),
            "elections": elections,
            "change_p50_ms": round(took[len(took) // 2] * 1000, 2),
            "change_p99_ms": round(took[int(len(took) * 0.99)] * 1000, 2),
        }
    finally:
        await brokers.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="controllers-") as directory:
        ports = [free_port() for _ in range(3)]
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        controllers = [
            Controller("aerobee", Path(directory) / str(number), peers, f"n{number}", port)
            for number, port in enumerate(ports)
        ]
        try:
            for each in controllers:
                each.start(wait=False)
            for each in controllers:
                each.wait_ready()
            found = asyncio.run(measure(controllers, options.groups, options.seconds))
        finally:
            for each in controllers:
                each.kill()
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "controllers.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
