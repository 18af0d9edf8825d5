"""What the leading controller costs with many groups, and how fast it changes a sync state set.

    PYTHONPATH=. python bench/controllers.py [--groups 1000] [--seconds 20]

Three controllers as processes, each with a connection of every broker of --groups groups of three, which send a heartbeat every
second as brokers do and are answered; 1,000 groups are 9,000 heartbeats a second, sent by separate processes as bytes made
beforehand over plain sockets. Meanwhile another process reports as masters do changes of their sync state sets (1001), one
after the other. CPU is the leader's share of one core, memory its resident bytes; the load runs at the same time on the same machine.
Where another controller is elected meanwhile (a machine that lets the leader wait for a second), the changes continue at that one, and
`elections` says how often; `heartbeats_a_second` is what the leader got. Results go to bench/results/controllers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import select
import socket
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from aerobee.clock import SystemClock
from aerobee.ha.controller.codes import ControllerCode
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame
from tests.interop.rocketmq import Controller, call
from tests.ports import free_ports
from tests.waiting import wait_for

HERE = Path(__file__).resolve().parent
CLUSTER = "DefaultCluster"
REPLICAS = 3
PROCESSES = 2  # that send heartbeats
SLICES = 100  # of a second, over which the heartbeats are spread


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def name_of(group: int) -> str:
    return f"group-{group:04d}"


def address_of(group: int, replica: int) -> str:
    """Where a broker says that it is."""
    return f"10.{group >> 8}.{group & 255}.{replica + 1}:10911"


def heartbeat(group: int, replica: int) -> bytes:
    """The frame of one broker's heartbeats."""
    ext = {
        "clusterName": CLUSTER, "brokerName": name_of(group), "brokerId": str(replica + 1),
        "brokerAddr": address_of(group, replica), "epoch": "1", "maxOffset": "0", "confirmOffset": "0",
        "heartbeatTimeoutMills": "10000", "electionPriority": "1", "diskSound": "true", "asyncLearner": "false",
        "leaseWanted": "true",
    }  # fmt: skip
    return encode_frame(RemotingCommand(RequestCode.BROKER_HEARTBEAT, ext, opaque=1))


def beat(
    controllers: list[str], groups: range, has_begun: Event, is_over: Event, beats: Synchronized[int]
) -> None:
    """Each broker's heartbeats to every controller, a second apart, spread over the second, until the end of the run.

    `beats` counts the rounds of all brokers; a round that takes longer than a second is begun late, and the count says so.
    """
    frames = [heartbeat(group, replica) for group in groups for replica in range(REPLICAS)]
    links: list[list[socket.socket]] = []
    answers = select.epoll()
    by_number: dict[int, socket.socket] = {}
    for _ in frames:
        own = []
        for controller in controllers:
            host, port = controller.rsplit(":", 1)
            link = socket.create_connection((host, int(port)), timeout=30)
            link.setblocking(False)
            answers.register(link, select.EPOLLIN)
            by_number[link.fileno()] = link
            own.append(link)
        links.append(own)
    due_s = time.monotonic()
    while not is_over.is_set():
        for slice_number in range(SLICES):
            for number in range(slice_number, len(frames), SLICES):
                for link in links[number]:
                    link.send(frames[number])
                beats.value += 1
            due_s += 1 / SLICES
            while True:
                for found, _ in answers.poll(max(0.0, due_s - time.monotonic()), 4_096):
                    by_number[found].recv(65_536)
                if time.monotonic() >= due_s:
                    break
        has_begun.set()


class Registration:
    """What brokers ask for when they are new: ids, and a master for each group."""

    def __init__(self, controllers: list[str], leader: str) -> None:
        self.controllers = controllers
        self.leader = leader
        self.client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())

    async def ask(self, code: int, ext: dict[str, str]) -> None:
        while True:
            reply = await self.client.invoke(self.leader, RemotingCommand(code, ext), timeout_s=30)
            if reply.code != ControllerCode.NOT_LEADER:
                break
            self.leader = await asyncio.to_thread(leader_of, self.controllers)
        assert reply.code == 0, (code, reply)

    async def register(self, group: int) -> None:
        """Ids for three brokers, the first of them master."""
        named = {"clusterName": CLUSTER, "brokerName": name_of(group)}
        for replica in range(REPLICAS):
            broker_id, address = str(replica + 1), address_of(group, replica)
            await self.ask(
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                {
                    **named,
                    "appliedBrokerId": broker_id,
                    "registerCheckCode": f"{address};{name_of(group)}-{replica}",
                },
            )
            await self.ask(
                RequestCode.CONTROLLER_REGISTER_BROKER,
                {**named, "brokerId": broker_id, "brokerAddress": address},
            )
        await self.ask(
            RequestCode.CONTROLLER_ELECT_MASTER, {**named, "brokerId": "1", "designateElect": "false"}
        )


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
            if reply.code:
                # Not agreed on in time, which counts with the time that it took; the group's epoch is not known any more.
                number += 1
                continue
            epochs[group] = json.loads(reply.body)["syncStateSetEpoch"]
            number += 1
            await asyncio.sleep(0.02)
    finally:
        await client.close()
    return took, elections


def change_sets_apart(controllers: list[str], groups: int, seconds: float) -> tuple[list[float], int]:
    """change_sets() in this process."""
    return asyncio.run(change_sets(controllers, groups, seconds))


async def measure(
    controllers: list[Controller], groups: int, seconds: float, beats: list[Synchronized[int]]
) -> dict[str, float]:
    addresses = [each.address for each in controllers]
    registration = Registration(addresses, leader_of(addresses))
    try:
        for first in range(0, groups, 50):
            await asyncio.gather(
                *(registration.register(each) for each in range(first, min(groups, first + 50)))
            )
    finally:
        await registration.client.close()
    await asyncio.sleep(3)
    leader = await asyncio.to_thread(leader_of, addresses)
    (leading,) = (each for each in controllers if each.address == leader)
    assert leading.process is not None
    pid = leading.process.pid
    cpu_before, beats_before, begun = cpu_s(pid), sum(each.value for each in beats), time.monotonic()
    await asyncio.sleep(seconds / 2)
    took_s = time.monotonic() - begun
    cores = (cpu_s(pid) - cpu_before) / took_s
    rate = (sum(each.value for each in beats) - beats_before) / took_s
    # In a separate process: next to other work it would measure this event loop.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
        loop = asyncio.get_running_loop()
        took, elections = await loop.run_in_executor(apart, change_sets_apart, addresses, groups, seconds / 2)
    took.sort()
    return {
        "groups": groups,
        "heartbeats_a_second": round(rate),
        "leader_cores": round(cores, 3),
        "leader_mib": round(resident_bytes(pid) / (1 << 20), 1),
        "changes": len(took),
        "elections": elections,
        "change_p50_ms": round(took[len(took) // 2] * 1000, 2),
        "change_p99_ms": round(took[int(len(took) * 0.99)] * 1000, 2),
    }


def with_heartbeats(controllers: list[Controller], groups: int, seconds: float) -> dict[str, float]:
    """measure() while the processes of the brokers run."""
    apart = multiprocessing.get_context("spawn")
    is_over = apart.Event()
    begun, beats, processes = [], [], []
    addresses = [each.address for each in controllers]
    for number in range(PROCESSES):
        own = range(groups * number // PROCESSES, groups * (number + 1) // PROCESSES)
        begun.append(apart.Event())
        beats.append(apart.Value("q", 0))
        processes.append(
            apart.Process(target=beat, args=(addresses, own, begun[-1], is_over, beats[-1]), daemon=True)
        )
        processes[-1].start()
    try:
        for each in begun:
            assert each.wait(120), "the brokers' connections were not there within two minutes"
        return asyncio.run(measure(controllers, groups, seconds, beats))
    finally:
        is_over.set()
        for process in processes:
            process.join(10)
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="controllers-") as directory:
        ports = free_ports(3)
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
            found = with_heartbeats(controllers, options.groups, options.seconds)
        finally:
            for each in controllers:
                each.kill()
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "controllers.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
