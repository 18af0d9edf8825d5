"""A broker on a small file system that fills up: sends are refused with the reason, pulls continue, retention frees space.

    sudo python tests/survival/full_disk.py [--megabytes 64] [--sync-flush]

Mounts a tmpfs, runs nameserver and broker on it, fills it from outside the broker, first above diskSpaceWarningLevelRatio, then to
the last byte. Checked: every refusal is a code with the disk as its reason, what was acknowledged before stays readable
meanwhile, old log files go, and sends work again without a restart. Needs the right to mount (root).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import servers

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import Compression, ProducerConfig
from aerobee.client.consumer.pull_consumer import PullConsumer
from aerobee.client.producer.producer import Producer
from aerobee.errors import AerobeeError
from aerobee.message import Message, MessageQueue

TOPIC = "full-disk"
BODY = b"x" * 10_000
STEP_TIMEOUT_S = 120.0
SETTINGS = {
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 5_000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "10000",
    "commitLogReserveBytes": str(1 << 20),
    "cleanResourceInterval": "500",
}


class Fault(Exception):
    """A promise was broken."""


class NoMountRight(Exception):
    """This process may not mount a file system."""


@contextlib.contextmanager
def small_file_system(megabytes: int) -> Iterator[Path]:
    """A separate tmpfs, gone afterwards. Raises NoMountRight."""
    libc = ctypes.CDLL(None, use_errno=True)
    directory = tempfile.mkdtemp(prefix="aerobee-full-disk-")
    path = os.fsencode(directory)
    if libc.mount(b"tmpfs", path, b"tmpfs", 0, f"size={megabytes}m".encode()):
        error = ctypes.get_errno()
        os.rmdir(directory)
        raise NoMountRight(f"mount of a tmpfs: {os.strerror(error)}")
    try:
        yield Path(directory)
    finally:
        lazily = 2
        libc.umount2(path, lazily)
        os.rmdir(directory)


def used_share(path: Path) -> float:
    answer = os.statvfs(path)
    return 1 - answer.f_bavail / answer.f_blocks


def fill(path: Path, share: float) -> None:
    """Take space in a file next to the broker's until this share of the file system is used."""
    with (path / "ballast").open("ab") as ballast:
        answer = os.statvfs(path)
        count = int((share - used_share(path)) * answer.f_blocks * answer.f_frsize)
        try:
            os.posix_fallocate(ballast.fileno(), ballast.tell(), max(1, count))
        except OSError:
            if share < 1:
                raise
        while share >= 1:
            try:
                os.posix_fallocate(ballast.fileno(), ballast.seek(0, os.SEEK_END), 4096)
            except OSError:
                return


class Scene:
    """Sends one message after the other and knows how many were acknowledged."""

    def __init__(self, producer: Producer, consumer: PullConsumer, queue: MessageQueue) -> None:
        self.producer = producer
        self.consumer = consumer
        self.queue = queue
        self.acked = 0

    async def send(self) -> str:
        """The reason of the refusal, empty when the message was taken."""
        try:
            result = await self.producer.send(Message(TOPIC, b"%d " % self.acked + BODY), queue=self.queue)
        except AerobeeError as error:
            return str(error)
        if result.queue_offset != self.acked:
            raise Fault(f"message {self.acked} has offset {result.queue_offset}")
        self.acked += 1
        return ""

    async def send_until(self, refused: bool) -> str:
        """Send until a message is refused, or taken. Returns the last refusal."""
        until = time.monotonic() + STEP_TIMEOUT_S
        reason = ""
        while time.monotonic() < until:
            answer = await self.send()
            if bool(answer) is refused:
                return answer or reason
            reason = answer or reason
            await asyncio.sleep(0 if refused else 0.02)
        raise Fault(
            f"sends are {'not refused' if refused else f'still refused: {reason}'} after {STEP_TIMEOUT_S} s"
        )

    async def read_newest(self, count: int) -> None:
        """The newest acknowledged messages can be pulled. Raises Fault."""
        first = self.acked - count
        await self.consumer.assign([self.queue])
        await self.consumer.seek(self.queue, first)
        found: list[int] = []
        until = time.monotonic() + STEP_TIMEOUT_S
        while len(found) < count and time.monotonic() < until:
            found += [int(message.body.split(b" ")[0]) for message in await self.consumer.poll(1.0)]
        if found != list(range(first, self.acked)):
            raise Fault(
                f"messages {first} to {self.acked - 1} were acknowledged, {found[:3]}… ({len(found)}) came"
            )


def check_reason(reason: str) -> str:
    """The refusal names the disk and the code that clients know. Returns its first 500 characters."""
    if "SERVICE_NOT_AVAILABLE" not in reason and "14" not in reason:
        raise Fault(f"the refusal has another code: {reason}")
    if "no disk space" not in reason and "diskSpaceWarningLevelRatio" not in reason:
        raise Fault(f"the refusal does not say why: {reason}")
    return reason[:500]


async def make_topic(nameserver: str, broker: str) -> None:
    """Return when the nameserver knows it: brokers register a topic a moment after they made it."""
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queue_count=1, broker=broker)
        until = time.monotonic() + STEP_TIMEOUT_S
        while TOPIC not in await admin.topics():
            if time.monotonic() > until:
                raise Fault(f"the nameserver does not know the topic after {STEP_TIMEOUT_S} s")
            await asyncio.sleep(0.05)


async def run(server: servers.Server, mount: Path) -> dict[str, object]:
    """Fill twice. Raises Fault; returns what was seen."""
    nameserver = f"127.0.0.1:{server.nameserver_port}"
    config = ProducerConfig(retry_count_max=0, compression=Compression.NONE)
    async with (
        Producer(nameserver, config=config) as producer,
        PullConsumer(nameserver, "reader") as consumer,
    ):
        await make_topic(nameserver, server.address)
        queue = (await producer.queues(TOPIC))[0]
        scene = Scene(producer, consumer, queue)
        while used_share(mount) < 0.6:
            reason = await scene.send()
            if reason:
                raise Fault(f"refused with {used_share(mount):.0%} used: {reason}")
        fill(mount, 0.94)
        started = time.monotonic()
        above_level = check_reason(await scene.send_until(refused=True))
        await scene.read_newest(20)
        await scene.send_until(refused=False)
        refused_s = time.monotonic() - started
        oldest = await consumer.begin_offset(queue)
        if not oldest:
            raise Fault("no old message was deleted")
        await scene.read_newest(20)

        fill(mount, 1.0)
        no_space = check_reason(await scene.send_until(refused=True))
        await scene.read_newest(20)
        async with PullConsumer(nameserver, "newcomers") as scene.consumer:
            await scene.read_newest(20)
        scene.consumer = consumer
        (mount / "ballast").unlink()
        await scene.send_until(refused=False)
        await scene.read_newest(20)
    for process in server.processes:
        if process.poll() is not None:
            raise Fault(f"a process ended with status {process.returncode}")
    return {
        "acked": scene.acked,
        "deleted_by_retention": oldest,
        "refused_for_s": round(refused_s, 2),
        "refusal_above_the_level": above_level,
        "refusal_without_space": no_space,
    }


def run_all(megabytes: int, *, sync_flush: bool = False) -> dict[str, object]:
    """Mount, start, fill. Raises Fault, NoMountRight."""
    with small_file_system(megabytes) as mount:
        store = mount / "store"
        extra = {**SETTINGS, "storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
        with servers.aerobee(sync_flush=sync_flush, extra=extra) as server:
            figures = asyncio.run(run(server, mount))
            log = (server.directory / "broker.log").read_text(errors="replace")
    if "Traceback" in log:
        raise Fault(f"the broker's log holds a traceback: {log[log.index('Traceback') :][:3000]}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--sync-flush", action="store_true")
    options = parser.parse_args()
    try:
        print(json.dumps(run_all(options.megabytes, sync_flush=options.sync_flush), indent=1))
    except (Fault, NoMountRight, servers.ServerFailed) as fault:
        print(f"FAULT: {fault}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
