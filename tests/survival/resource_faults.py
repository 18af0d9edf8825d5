"""A broker that runs out of memory or threads, and one whose file system or device fails under it.

    sudo python tests/survival/resource_faults.py [--case memory|threads|ext4|xfs|device]

memory   a control group leaves it 64 MiB above what it has; 200 MiB are sent, then read from the disk
threads  a control group lets it make no thread more
ext4     on a loop device: full to the last byte, then read-only after an error (errors=remount-ro)
xfs      the same, then shut down
device   a loop device over a file whose file system is full: writes of the device end in EIO, as dm-error's do

What must hold: whoever is refused is notified why, what was acknowledged is read again, in the end after a restart, and no
traceback is in the log. The broker of `ext4` to `device` answers when the disk has what it stored. A broker that the kernel
ends (SIGBUS: the page of a mapping cannot be written) is started again by its supervisor, here by this script.

Needs root, for `xfs` mkfs.xfs and xfs_io.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bench"), str(Path(__file__).resolve().parents[2])]

import servers  # noqa: E402

from aerobee.client.base.config import Compression, ProducerConfig  # noqa: E402
from aerobee.client.consumer.pull_consumer import PullConsumer  # noqa: E402
from aerobee.client.producer.producer import Producer  # noqa: E402
from tests.survival import full_disk  # noqa: E402
from tests.survival.full_disk import SETTINGS, TOPIC, Fault, Scene, make_topic, small_file_system  # noqa: E402

CGROUPS = Path("/sys/fs/cgroup")
MEMORY_ABOVE_BYTES = 64 << 20
SENT_BYTES = 200 << 20
IMAGE_BYTES = 400 << 20  # xfs takes no less than 300 MiB
REFUSED_WAIT_S = 30.0
RELEASE_WAIT_S = 60.0


class NotHere(Exception):
    """This machine, or this user, has not what the case needs."""


def run_tool(*command: str) -> str:
    """Its output. Raises NotHere when there is no such tool, Fault when it fails."""
    if shutil.which(command[0]) is None:
        raise NotHere(f"there is no {command[0]}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotHere(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout.strip()


# -- control groups


@contextlib.contextmanager
def limited(pid: int, controller: str, limit: Callable[[Path], tuple[str, str]]) -> Iterator[Path]:
    """Put a process under a limit of a separate control group, version 1 or 2. `limit` gives file and value."""
    is_second = (CGROUPS / "cgroup.controllers").exists()
    parent = CGROUPS if is_second else CGROUPS / controller
    group = parent / f"aerobee-{os.getpid()}-{controller}"
    try:
        group.mkdir()
        if is_second:
            (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
        (group / "cgroup.procs").write_text(str(pid))
        file, value = limit(group)
        (group / file).write_text(value)
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise NotHere(f"no control group can be made: {error}") from error
    try:
        yield group
    finally:
        _leave(group, parent)


def _leave(group: Path, parent: Path) -> None:
    for _ in range(100):  # the process is gone, or goes to the group above
        with contextlib.suppress(OSError):
            for each in (group / "cgroup.procs").read_text().split():
                (parent / "cgroup.procs").write_text(each)
            group.rmdir()
            return
        time.sleep(0.05)


def memory_limit(group: Path, pid: int) -> tuple[str, str]:
    status = Path(f"/proc/{pid}/status").read_text()
    own = int(status.partition("RssAnon:")[2].split()[0]) * 1024
    file = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
    return file, str(own + MEMORY_ABOVE_BYTES)


def thread_limit(pid: int) -> tuple[str, str]:
    return "pids.max", str(len(list(Path(f"/proc/{pid}/task").iterdir())))


@contextlib.contextmanager
def limited_without_root(pid: int, limit: int, value: int) -> Iterator[Path]:
    """The same by a resource limit of the process, which its user may set."""
    resource.prlimit(pid, limit, (value, resource.prlimit(pid, limit)[1]))
    yield Path("/nonexistent")
    resource.prlimit(pid, limit, (resource.prlimit(pid, limit)[1],) * 2)


def data_limit(pid: int) -> int:
    """RLIMIT_DATA: what it has, and as much more as a control group would leave it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) * 1024 + MEMORY_ABOVE_BYTES


def judge_log(server: servers.Server) -> None:
    log = (server.directory / "broker.log").read_text(errors="replace")
    if "Traceback" in log:
        raise Fault(f"the broker's log holds a traceback: {log[log.index('Traceback') :][:3000]}")


def judge_alive(server: servers.Server) -> None:
    for process in server.processes:
        if process.poll() is not None:
            raise Fault(f"a process ended with status {process.returncode}")


@contextlib.asynccontextmanager
async def scene_of(server: servers.Server, *, is_new: bool = True) -> AsyncIterator[Scene]:
    nameserver = f"127.0.0.1:{server.nameserver_port}"
    config = ProducerConfig(retry_count_max=0, compression=Compression.NONE)
    async with (
        Producer(nameserver, config=config) as producer,
        PullConsumer(nameserver, "reader") as consumer,
    ):
        if is_new:
            await make_topic(nameserver, server.address)
        yield Scene(producer, consumer, (await producer.queues(TOPIC))[0])


async def send_all(scene: Scene, count: int) -> None:
    for _ in range(count):
        if reason := await scene.send():
            raise Fault(f"message {scene.acked} was refused: {reason}")


def memory(share: float = 1.0, *, root: bool = True) -> dict[str, object]:
    """`share` of the bytes: a short run sends less. Without `root` by RLIMIT_DATA."""
    with servers.aerobee(extra=SETTINGS) as server:
        pid = server.pids[-1]
        with (
            limited(pid, "memory", lambda group: memory_limit(group, pid))
            if root
            else limited_without_root(pid, resource.RLIMIT_DATA, data_limit(pid))
        ) as group:

            async def run() -> int:
                async with scene_of(server) as scene:
                    await send_all(scene, int(SENT_BYTES * share) // len(full_disk.BODY))
                    await scene.read_newest(scene.acked)
                    return scene.acked

            acked = asyncio.run(run())
            usage = group / (
                "memory.peak" if (group / "memory.peak").exists() else "memory.max_usage_in_bytes"
            )
            peak = int(usage.read_text()) if usage.exists() else -1
            judge_alive(server)
        judge_log(server)
        return {"acked": acked, "limit_above_own_mib": MEMORY_ABOVE_BYTES >> 20, "peak_mib": peak >> 20}


def threads(*, root: bool = True) -> dict[str, object]:
    """Without `root` by RLIMIT_NPROC, which does not hold for root."""
    with servers.aerobee(extra=SETTINGS) as server:
        pid = server.pids[-1]

        async def run() -> int:
            async with scene_of(server) as scene:
                with (
                    limited(pid, "pids", lambda _: thread_limit(pid))
                    if root
                    else limited_without_root(pid, resource.RLIMIT_NPROC, 0)
                ):
                    await send_all(scene, 500)
                    await scene.read_newest(500)
                    await asyncio.sleep(6)  # offsets are saved
                    await send_all(scene, 100)
                await send_all(scene, 100)
                await scene.read_newest(700)
                return scene.acked

        acked = asyncio.run(run())
        judge_alive(server)
        judge_log(server)
        return {"acked": acked, "threads": thread_limit(pid)[1]}


# -- file systems on loop devices


@contextlib.contextmanager
def loop_device(directory: Path) -> Iterator[tuple[Path, str]]:
    """A sparse image in a directory and its loop device."""
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    device = run_tool("losetup", "--find", "--show", str(image))
    try:
        yield image, device
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


@contextlib.contextmanager
def mounted(kind: str, device: str) -> Iterator[Path]:
    """Make a file system on the device and mount it."""
    run_tool(f"mkfs.{kind}", "-q", *(("-F",) if kind == "ext4" else ("-f",)), device)
    mount = tempfile.mkdtemp(prefix=f"aerobee-{kind}-")
    try:
        mount_again(kind, device, mount)
        yield Path(mount)
    finally:
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        os.rmdir(mount)


def mount_again(kind: str, device: str, mount: str) -> None:
    options = ("-o", "errors=remount-ro") if kind == "ext4" else ()
    run_tool("mount", "-t", kind, *options, device, mount)


def unmount(device: str, mount: Path) -> None:
    """Return when the file system is released. A mount namespace that was made meanwhile holds it, too. Raises NotHere."""
    subprocess.run(["umount", str(mount)], check=False, capture_output=True)
    until = time.monotonic() + RELEASE_WAIT_S
    while True:
        try:
            os.close(os.open(device, os.O_RDWR | os.O_EXCL))
            return
        except OSError as error:
            if time.monotonic() > until:
                raise NotHere(f"{device} stays in use, by another mount namespace: {error}") from error
            time.sleep(0.2)


def break_file_system(kind: str, device: str, mount: Path) -> None:
    """From here on nothing is written any more, whoever has a file open."""
    if kind == "ext4":
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("by resource_faults.py")
    else:
        run_tool("xfs_io", "-x", "-c", "shutdown", str(mount))


def on_store(mount: Path) -> dict[str, str]:
    store = mount / "store"
    return {**SETTINGS, "storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}


async def send_until_it_fails(server: servers.Server, break_it: Callable[[], None]) -> tuple[int, str]:
    """Send, break, send: how many were acknowledged, and the first error of the sender."""
    async with scene_of(server) as scene:
        await send_all(scene, 300)
        break_it()
        until = time.monotonic() + REFUSED_WAIT_S
        while time.monotonic() < until:
            try:
                reason = await scene.send()
            except Fault as fault:  # stored, but not said: the offset behind it is another one
                return scene.acked, str(fault)
            if reason:
                return scene.acked, reason
        raise Fault("sends were acknowledged by a disk that takes nothing")


def start_again(mount: Path, acked: int) -> str:
    """Start on what is left and read what was acknowledged; how the start went.

    A device that lost what it had not answered for leaves entries of messages without their records: the start may be refused
    with the choice, for it cannot know that no producer got an acknowledgement of them.
    """
    extra, how = on_store(mount), "by itself"
    for _ in range(2):
        try:
            with servers.aerobee(sync_flush=True, extra=extra) as server:
                asyncio.run(read_again(server, acked))
                judge_log(server)
            return how
        except servers.ServerFailed as failed:
            if "truncateCorruptLog=true" not in str(failed) or how != "by itself":
                raise
            extra["truncateCorruptLog"], how = "true", "with truncateCorruptLog=true, as the refusal says"
    raise AssertionError


async def read_again(server: servers.Server, acked: int) -> None:
    async with scene_of(server, is_new=False) as scene:
        scene.acked = acked
        await scene.read_newest(acked)


def how_it_ended(server: servers.Server) -> str:
    """Of the broker: it lives, or the kernel ended it. Raises Fault for anything else."""
    time.sleep(0.5)
    status = server.processes[-1].poll()
    if status is None:
        return "continues"
    if status == -signal.SIGBUS:
        return "ended by SIGBUS"
    raise Fault(f"the broker ended with status {status}")


def file_system(kind: str, *, fills: bool = True) -> dict[str, object]:
    """Without `fills` it only breaks: for a short run."""
    with (
        tempfile.TemporaryDirectory(prefix="aerobee-image-") as directory,
        loop_device(Path(directory)) as (_, device),
        mounted(kind, device) as mount,
    ):
        full: dict[str, object] = {}
        if fills:
            with servers.aerobee(sync_flush=True, extra=on_store(mount)) as server:
                full = asyncio.run(full_disk.run(server, mount))
            shutil.rmtree(mount / "store")
        with servers.aerobee(sync_flush=True, extra=on_store(mount)) as server:
            acked, reason = asyncio.run(
                send_until_it_fails(server, lambda: break_file_system(kind, device, mount))
            )
            ended = how_it_ended(server)
            judge_log(server)
        unmount(device, mount)
        mount_again(kind, device, str(mount))
        restart = start_again(mount, acked)
    return {"full": full, "acked": acked, "then": ended, "restart": restart, "refusal": reason[:300]}


def device() -> dict[str, object]:
    with small_file_system(96) as below, loop_device(below) as (_, name), mounted("ext4", name) as mount:

        def fill_below() -> None:
            with (below / "ballast").open("ab") as ballast, contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(65_536))
                    ballast.flush()

        with servers.aerobee(sync_flush=True, extra=on_store(mount)) as server:
            acked, reason = asyncio.run(send_until_it_fails(server, fill_below))
            ended = how_it_ended(server)
            judge_log(server)
        (below / "ballast").unlink()
        unmount(name, mount)
        subprocess.run(["e2fsck", "-y", "-f", name], check=False, capture_output=True)
        mount_again("ext4", name, str(mount))
        restart = start_again(mount, acked)
    return {"acked": acked, "then": ended, "restart": restart, "refusal": reason[:300]}


CASES: dict[str, Callable[[], dict[str, object]]] = {
    "memory": memory,
    "threads": threads,
    "ext4": lambda: file_system("ext4"),
    "xfs": lambda: file_system("xfs"),
    "device": device,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES)
    chosen = parser.parse_args().case
    failed = False
    for name in (chosen,) if chosen else CASES:
        try:
            print(json.dumps({name: CASES[name]()}, indent=1), flush=True)
        except (Fault, NotHere, full_disk.NoMountRight, servers.ServerFailed) as fault:
            print(f"{name}: {type(fault).__name__}: {fault}", file=sys.stderr, flush=True)
            failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
