"""The console of `aerobee up`: begins with the first browser, comes again when it dies, ends with `up`."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_broker_port, free_port
from tests.waiting import wait_until

WITHIN_S = 120.0  # a process is started for the first page, on a machine that may be busy
AEROBEE = (sys.executable, "-m", "aerobee.ops")
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are read from /proc")


@contextmanager
def up(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    ports = (
        "--port",
        str(free_broker_port()),
        "--nameserver-port",
        str(free_port()),
        "--grpc-port",
        str(free_port()),
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    process = subprocess.Popen(
        [
            *AEROBEE,
            *("up", "--ephemeral", *ports),
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def brokers(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}api/overview", timeout=WITHIN_S) as answer:
        return [row["address"] for row in json.load(answer)["brokers"]]


async def test_it_begins_with_the_first_browser_comes_again_and_ends_with_up() -> None:
    with up("--json") as process:
        said = ready(process)
        assert children(process.pid) == []  # no page is open
        assert brokers(said["console"]) == list(said["brokers"].values())
        (console,) = children(process.pid)
        os.kill(console, signal.SIGKILL)
        assert brokers(said["console"]) == list(said["brokers"].values())
        assert console not in children(process.pid)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0, error
        assert json.loads(out) == {"event": "stopped"}
        assert "the console ended by signal SIGKILL; the next browser connection starts it again" in error
        with pytest.raises(OSError, match="refused"):
            brokers(said["console"])


async def test_it_ends_when_up_is_killed() -> None:
    with up("--json") as process:
        said = ready(process)
        assert brokers(said["console"])
        (console,) = children(process.pid)
        process.kill()
        process.wait(WITHIN_S)
        await wait_until(lambda: not Path(f"/proc/{console}/cmdline").exists(), "the console ends", timeout_s=WITHIN_S)  # fmt: skip


def test_its_address_stands_in_what_up_says() -> None:
    port = free_port()
    with up("--console", str(port)) as process:
        assert process.stdout is not None
        lines = []
        while not lines or lines[-1].strip():
            lines.append(process.stdout.readline())
        (line,) = (each for each in lines if each.lstrip().startswith("console"))
        assert line == f"  console     http://127.0.0.1:{port}/\n"
        # A second cluster that wants the same port is refused before anything of it starts.
        with up("--console", str(port)) as second:
            _, error = second.communicate(timeout=WITHIN_S)
            assert second.returncode == 6
            assert re.search(
                rf"the console cannot listen at 127.0.0.1:{port}: another process uses the port", error
            )


def test_without_a_console() -> None:
    with up("--json", "--no-console") as process:
        assert ready(process)["console"] is None


def test_a_console_may_open_as_many_files_as_the_system_lets_it() -> None:
    """Most systems give a process 1,024 at first: the tabs of a browser and untrusted peers exhausted them long before the bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    port = free_port()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1_000), hard))
    try:
        process = subprocess.Popen(
            [*AEROBEE, "console", "--port", str(port), "-n", "127.0.0.1:1", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with process:
        try:
            ready(process)
            (line,) = re.findall(
                r"Max open files +(\d+) +(\d+)", Path(f"/proc/{process.pid}/limits").read_text()
            )
            assert line == (str(hard), str(hard))
        finally:
            process.kill()
