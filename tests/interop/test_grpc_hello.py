"""The programs of docs/grpc-clients.md: the official client of each language sends a message to our broker and receives it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from aerobee.testing import LocalCluster
from tests.interop.rocketmq import GRPC_HELLOS, NODE_MODULES
from tests.waiting import wait_until

NAMES = {"java": "Java", "go": "Go", "python": "Python", "node": "Node.js", "rust": "Rust"}
TIMEOUT_S = 120.0
TRIES = 5  # a receive that waits longer on a busy machine than the client's deadline gets nothing


def hello(language: str, endpoint: str, home: Path) -> str:
    """The standard output of one run. Java's client logs below the home directory."""
    command = [str(part) for part in GRPC_HELLOS[language]]
    if language == "java":
        command[1:1] = [f"-Duser.home={home}"]
    environment = {**os.environ, "HOME": str(home), "NODE_PATH": str(NODE_MODULES)}
    done = subprocess.run(
        [*command, endpoint],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
        cwd=home,
    )
    print(f"{language}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@pytest.mark.parametrize("language", GRPC_HELLOS)
async def test_the_program_of_the_page_receives_its_message(language: str, tmp_path: Path) -> None:
    received = f"received an order from {NAMES[language]}"
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        broker = cluster.broker()
        for _ in range(TRIES):
            output = await asyncio.to_thread(hello, language, broker.address, tmp_path)
            if received in output:
                break
        assert received in output
        assert broker.services.acks.ack_count > 0
        group = f"{language}-billing"
        await wait_until(lambda: list(broker.services.acks._engine.in_flight.out(group)) == [])
