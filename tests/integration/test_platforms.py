"""The client on what Windows has, and servers on what macOS has: modules, functions and constants are hidden (other_platforms.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.other_platforms import MACOS, ROOT, WINDOWS, run_on

IMPORT_ALL = """
import importlib, pkgutil, aerobee, aerobee.client, aerobee.remoting, aerobee.testing
names = [each.name for package in (aerobee.client, aerobee.remoting, aerobee.testing)
         for each in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    importlib.import_module(name)
for name in aerobee.__all__:
    getattr(aerobee, name)
import aerobee.ops.commands.send, aerobee.ops.commands.consume, aerobee.ops.commands.topic, aerobee.ops.diagnosis.doctor
print(len(names))
"""
SEND_AND_RECEIVE = """
from aerobee.client import ClientConfig, ConsumeFrom, ConsumerConfig, MessageModel, Producer, PullConsumer, PushConsumer
from aerobee.message import Message

async def main(nameserver, offsets):
    async with Producer(nameserver) as producer:
        for number in range(3):
            await producer.send(Message("orders", b"order %d" % number))
    for model in (MessageModel.CLUSTERING, MessageModel.BROADCASTING):
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, model=model, local_offsets_directory=offsets)
        async with PushConsumer(nameserver, f"group-{model.name}", subscriptions={"orders": "*"}, config=config) as consumer:
            bodies = set()
            async for message in consumer:
                bodies.add(message.body)
                if len(bodies) == 3:
                    break
        assert bodies == {b"order 0", b"order 1", b"order 2"}
    # The second consumer of a machine does not get the first one's file, by the locks of Windows.
    assert msvcrt.LK_NBLCK in msvcrt.calls and msvcrt.calls[-1] == msvcrt.LK_UNLCK

asyncio.run(main(sys.argv[1], sys.argv[2]))
print("received")
"""
TWO_DIRECTORIES = """
from pathlib import Path
from aerobee.client.consumer.local_directory import LocalDirectory
first = LocalDirectory.claim(Path(sys.argv[1]), "10.0.0.1@DEFAULT", "group")
second = LocalDirectory.claim(Path(sys.argv[1]), "10.0.0.1@DEFAULT", "group")
assert second.directory != first.directory
first.close()
assert LocalDirectory.claim(Path(sys.argv[1]), "10.0.0.1@DEFAULT", "group").directory == first.directory
print("claimed")
"""
BROKER = """
from aerobee.testing import LocalCluster
from aerobee.client import ConsumeFrom, PullConsumerConfig
from aerobee.message import Message

async def main(directory, run):
    cluster = LocalCluster(directory=directory, broker_config={"flushDiskType": "SYNC_FLUSH"})
    await cluster.start()
    await cluster.create_topic("orders", queues=1)
    before = len(full_syncs)
    async with cluster.producer() as producer:
        for number in range(20):
            await producer.send(Message("orders", b"%s %d" % (run.encode(), number)))
    assert len(full_syncs) > before, "a durable acknowledgement needs F_FULLFSYNC"
    if run == "first":
        print("sent", flush=True)
        os._exit(0)  # neither checkpoint nor flush; the abort file stays
    bodies = []
    config = PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with cluster.pull_consumer("readers", config=config) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        while len(bodies) < 40:
            bodies += [each.body.decode() for each in await consumer.poll()]
    assert bodies == [f"{run} {number}" for run in ("first", "second") for number in range(20)]
    await cluster.stop()
    print("recovered")

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""
LOCKS = """
from aerobee.errors import StoreLocked
from aerobee.store.files.disk import RealDisk
disk, path = RealDisk(), sys.argv[1] + "/lock"
held = disk.lock(path)
for _ in range(2):  # the second try shows that the first one did not release the lock
    try:
        disk.lock(path)
    except StoreLocked:
        continue
    raise SystemExit("locked twice by one process")
other = subprocess.run([sys.executable, "-c", '''
import sys
from aerobee.errors import StoreLocked
from aerobee.store.files.disk import RealDisk
try:
    RealDisk().lock(sys.argv[1])
except StoreLocked:
    print("refused")
''', path], capture_output=True, text=True)
assert other.stdout == "refused\\n", other
held.release()
disk.lock(path).release()
disk.sync_all(sys.argv[1])
assert disk.boot_id == b""
print("held")
"""
CLUSTER = """
import asyncio, sys
from aerobee.testing import LocalCluster

async def main():
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders")
        print(cluster.nameserver_address, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture
def nameserver() -> Iterator[str]:
    """A LocalCluster of this platform, in a separate process."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def test_the_client_imports_without_posix_modules() -> None:
    assert int(run_on(WINDOWS, IMPORT_ALL)) > 50


def test_the_client_sends_and_receives_as_on_windows(nameserver: str, tmp_path: Path) -> None:
    assert run_on(WINDOWS, SEND_AND_RECEIVE, nameserver, str(tmp_path)) == "received\n"


def test_two_broadcasting_consumers_lock_files_as_on_windows(tmp_path: Path) -> None:
    assert run_on(WINDOWS, TWO_DIRECTORIES, str(tmp_path)) == "claimed\n"


def test_the_command_line_works_as_on_windows(nameserver: str) -> None:
    """Its event loops watch no signals and no descriptors but sockets."""
    environment = {**os.environ, "AEROBEE_NAMESRV_ADDR": nameserver}
    code = "import sys\nfrom aerobee.ops.commands.tree import run_cli\nsys.exit(run_cli(sys.argv[1:]))\n"
    command = [sys.executable, "-c", WINDOWS + code]
    sent = subprocess.run(
        [*command, "send", "orders"],
        cwd=ROOT,
        env=environment,
        input=b"one\r\ntwo",
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"sent 2 messages" in sent.stdout
    consumed = subprocess.run(
        [*command, "consume", "orders", "--from", "first", "--no-follow"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert sorted(consumed.stdout.splitlines()) == [b"one", b"two"]


def test_a_server_on_windows_is_refused_in_one_sentence() -> None:
    code = "import sys\nfrom aerobee.ops.commands.tree import run_cli\nprint(run_cli(['up', '--ephemeral', '--json']))\n"
    failure = json.loads(run_on(WINDOWS, code).splitlines()[0])
    assert "run brokers, nameservers and controllers on Linux or macOS" in failure["error"]["message"]


def test_a_store_lock_of_the_process_conflicts_as_on_macos(tmp_path: Path) -> None:
    assert run_on(MACOS, LOCKS, str(tmp_path)) == "held\n"


@pytest.mark.parametrize("backend", ["python", "native"])
def test_a_broker_recovers_synced_messages_as_on_macos(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "native":
        pytest.importorskip("aerobee_native")
    monkeypatch.setenv("AEROBEE_FAST_PATH", backend)
    assert run_on(MACOS, BROKER, str(tmp_path), "first") == "sent\n"
    assert run_on(MACOS, BROKER, str(tmp_path), "second") == "recovered\n"
