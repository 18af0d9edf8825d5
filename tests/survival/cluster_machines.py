"""Separate machines for a cluster of real processes: network namespaces on one bridge, and file systems with little space.

All of it is in a network, mount and process namespace of whoever calls enter(), takes root, and ends with it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INSIDE = "CLUSTER_FAULTS_INSIDE"
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
NEEDED = ("unshare", "ip", "tc")
SUBNET = "10.77.0"
GROUPS = ("broker-a", "broker-b")
PORT, CONTROLLER_PORT, NAMESERVER_PORT = 10_911, 9_890, 9_876
DISK_MIB = 192
# No machine has this address of a link: what is sent there is lost without an answer.
TO_UNUSED_ADDRESS = ("lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
SLOW_LINK = ("tbf", "rate", "300kbit", "burst", "4kb", "latency", "3s")  # replicas need twice as much


def why_not() -> str:
    """Why namespaces cannot be made here; empty when they can."""
    absent = [each for each in NEEDED if shutil.which(each) is None]
    if absent:
        return f"{', '.join(absent)} not found (scripts/setup-namespaces installs them on Debian)"
    tried = subprocess.run(
        [*UNSHARE, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        f"{tried.stderr.strip()} (it takes root, or CAP_SYS_ADMIN and CAP_NET_ADMIN)"
        if tried.returncode
        else ""
    )


def enter() -> None:
    """Begin this program again where its machines will be; on return it is there."""
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp(UNSHARE[0], [*UNSHARE, sys.executable, *sys.argv])


@dataclass(slots=True)
class Machine:
    """A namespace with an address, and the process in it."""

    name: str
    address: str
    command: list[str]
    directory: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, sys.executable, "-m", "aerobee.ops", *self.command],
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        """SIGTERM, and wait."""
        assert self.process is not None
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, 30)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Machines:
    """All of them, on one bridge."""

    def __init__(
        self, directory: Path, broker_settings: Mapping[str, str] | None = None, *, disk_mib: int = DISK_MIB
    ) -> None:
        self._directory = directory
        self._disk_mib = disk_mib
        self._broker_settings = broker_settings or {}
        self._cuts: Counter[tuple[str, str]] = Counter()  # how often a link is cut: both its ends may be
        _run("mount", "-t", "tmpfs", "none", "/run")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "machines", "type", "bridge")
        _run("ip", "addr", "add", f"{SUBNET}.254/24", "dev", "machines")
        _run("ip", "link", "set", "machines", "up")
        nameservers = ";".join(f"{SUBNET}.{1 + n}:{NAMESERVER_PORT}" for n in range(2))
        controllers = ";".join(f"{SUBNET}.{11 + n}:{CONTROLLER_PORT}" for n in range(3))
        peers = ";".join(f"n{n}-{SUBNET}.{11 + n}:{CONTROLLER_PORT}" for n in range(3))
        self.nameserver_addresses, self.controller_addresses = nameservers, controllers
        self.nameservers = [
            self._machine(
                f"ns{n}", 1 + n, ["nameserver", "--host", "0.0.0.0", "--port", str(NAMESERVER_PORT)]
            )
            for n in range(2)
        ]
        self.controllers = [
            self._machine(
                f"c{n}",
                11 + n,
                self._config(
                    "controller",
                    f"c{n}",
                    {
                        "controllerDLegerGroup": "quorum",
                        "controllerDLegerPeers": peers,
                        "controllerDLegerSelfId": f"n{n}",
                        "controllerStorePath": str(directory / f"c{n}"),
                    },
                ),
            )
            for n in range(3)
        ]
        self.groups = {
            group: [
                self._broker(group, n, 21 + 10 * group_index + n, nameservers, controllers) for n in range(3)
            ]
            for group_index, group in enumerate(GROUPS)
        }
        self.all = [*self.nameservers, *self.controllers, *(each for g in self.groups.values() for each in g)]

    def _broker(self, group: str, number: int, host: int, nameservers: str, controllers: str) -> Machine:
        name = f"{group[-1]}{number}"
        store = self._directory / name
        store.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={self._disk_mib}m", "none", str(store))
        settings = {
            "brokerClusterName": "survival",
            "brokerName": group,
            "brokerIP1": f"{SUBNET}.{host}",
            "listenPort": str(PORT),
            "namesrvAddr": nameservers,
            "enableControllerMode": "true",
            "controllerAddr": controllers,
            "storePathRootDir": str(store / "store"),
            "mappedFileSizeCommitLog": str(4 << 20),
            "mappedFileSizeConsumeQueue": "200000",
            "maxHashSlotNum": "5000",
            "maxIndexNum": "20000",
            "inSyncReplicas": "2",
            "minInSyncReplicas": "2",
            "totalReplicas": "3",
            "allAckInSyncStateSet": "true",
            "diskMaxUsedSpaceRatio": "95",
            "cleanFileForciblyEnable": "false",  # a full disk would delete acknowledged messages, as documented
            "adminOpen": "true",
            **self._broker_settings,
        }
        return self._machine(name, host, self._config("broker", name, settings))

    def _config(self, kind: str, name: str, settings: dict[str, str]) -> list[str]:
        path = self._directory / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return [kind, "-c", str(path)]

    def _machine(self, name: str, host: int, command: list[str]) -> Machine:
        address = f"{SUBNET}.{host}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"v-{name}", "master", "machines", "up")
        for part in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _run("ip", "-n", name, *part)
        return Machine(name, address, command, self._directory)

    def at(self, address: str) -> Machine:
        return next(each for each in self.all if each.address == address)

    def cut_off(self, machine: Machine) -> None:
        """From all other machines; the clients, which run outside, still reach it."""
        for here, there in self._links(machine):
            self._cuts[here.name, there.address] += 1
            _run("ip", "-n", here.name, "neigh", "replace", there.address, *TO_UNUSED_ADDRESS)

    def open(self, machine: Machine) -> None:
        for here, there in self._links(machine):
            link = here.name, there.address
            self._cuts[link] -= 1
            if not self._cuts[link]:  # else the machine at its other end is cut off, too
                _run("ip", "-n", here.name, "neigh", "del", there.address, "dev", "eth0")

    def _links(self, machine: Machine) -> list[tuple[Machine, Machine]]:
        """To each other machine and back."""
        others = [each for each in self.all if each is not machine]
        return [(machine, each) for each in others] + [(each, machine) for each in others]

    def slow(self, machine: Machine) -> None:
        """What leaves it waits in a queue; this is no netem, which few kernels of containers have."""
        _run("tc", "-n", machine.name, "qdisc", "add", "dev", "eth0", "root", *SLOW_LINK)

    def quick(self, machine: Machine) -> None:
        _run("tc", "-n", machine.name, "qdisc", "del", "dev", "eth0", "root")
