"""`aerobee up` as a process, whose brokers are processes, too: they can be killed, stopped and slowed down one by one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from aerobee.client.sync import SyncAdmin
from aerobee.errors import AerobeeError
from tests.ports import free_block

SMALL = ("mappedFileSizeCommitLog=16777216", "maxHashSlotNum=50000", "maxIndexNum=200000")
NEVER = 0xFFFF


class UpProcesses:
    """`with UpProcesses(directory, "--brokers", "2") as up`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        base = free_block(60)
        ports = {"--port": base + 20, "--nameserver-port": base, "--controller-port": base + 1}
        self._log = directory / "up.log"
        self._command = [
            *(sys.executable, "-m", "aerobee.ops", "up", "--json", "--no-console", *arguments),
            *("--data", str(directory / "data")),
            *(text for name, port in ports.items() for text in (name, str(port))),
            *(text for pair in SMALL for text in ("--set", pair)),
        ]
        self.nameserver = f"127.0.0.1:{base}"

    def __enter__(self) -> UpProcesses:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line or json.loads(line).get("event") != "ready":
            self.__exit__()
            raise AssertionError(f"{line!r} {self._log.read_text()}")
        self.admin = SyncAdmin(self.nameserver)
        self.admin.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if hasattr(self, "admin"):
            self.admin.__exit__(None, None, None)
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise

    def master(self, name: str = "broker-a") -> str | None:
        """The address of the master that the nameserver knows; None while there is none."""
        with contextlib.suppress(AerobeeError):
            table = self.admin.cluster_info().broker_addr_table
            return table[name].broker_addrs.get(0) if name in table else None
        return None

    def has_successor(self, address: str) -> bool:
        """Whether a slave of the master there is in sync: without one no slave may replace it."""
        with contextlib.suppress(AerobeeError):
            replicas = self.admin.broker_runtime(address).get("haReplicas", "")
            return any(each.endswith(" in-sync") for each in replicas.split(";"))
        return False

    def pid_of(self, address: str) -> int:
        """The broker process that listens at an address."""
        wanted = f"listenPort={address.rpartition(':')[2]}".encode()
        for directory in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if directory.name.isdigit() and wanted in (directory / "cmdline").read_bytes().split(b"\0"):
                    return int(directory.name)
        raise AssertionError(f"no process of the broker at {address}")

    @contextlib.contextmanager
    def stopped(self, address: str, *, for_s: float = NEVER, every_s: float = 0.0) -> Iterator[None]:
        """The broker stands still; with `every_s` it runs in between, so that it is slow."""
        pid, ended = self.pid_of(address), threading.Event()

        def work() -> None:
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                ended.wait(for_s)
                os.kill(pid, signal.SIGCONT)
                ended.wait(every_s)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
