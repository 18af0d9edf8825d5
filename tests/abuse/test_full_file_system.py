"""A tmpfs without a free page: looking at pages that were never written must not take any (SIGBUS).

Each case runs in a separate process, which a signal would end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.survival.full_disk import NoMountRight, small_file_system

PRELUDE = """
import asyncio, os, sys
from aerobee.clock import SystemClock
from aerobee.errors import AerobeeError
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.message_store import MessageStore
from aerobee.store.log.stored_message import StoredMessage
HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
ROOT = sys.argv[1]

def fill():
    ballast = os.open(os.path.join(ROOT, "ballast"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in (1 << 20, 4096):
        try:
            while True:
                os.write(ballast, bytes(step))
        except OSError:
            pass
    os.close(ballast)

def make():
    config = StoreConfig(store_path_root_dir=os.path.join(ROOT, "store"), mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 20_000, max_hash_slot_num=5_000, max_index_num=600,
        commit_log_reserve_bytes=65_536)
    return MessageStore(config, disk=RealDisk(), clock=SystemClock(), store_host=lambda: HOST)

def send(store, number):
    store.append(StoredMessage(topic="T", queue_id=number % 3, body=b"x" * 100, born_timestamp=1, born_host=HOST,
        properties=b"KEYS\\x01k%d\\x02" % number))
"""

ROLL = """
store = make()
store.load()
for number in range(400):
    send(store, number)
fill()
refused = 0
for number in range(400, 2_000):  # index, queue and log files are due
    try:
        send(store, number)
    except AerobeeError as error:
        refused += 1
        assert "no disk space for" in str(error), error
assert refused
os.unlink(os.path.join(ROOT, "ballast"))
send(store, 2_000)
asyncio.run(store.stop())
print("DONE")
"""

RESTART = """
store = make()
store.load()
for number in range(400):
    send(store, number)
asyncio.run(store.{end}())
{punch}
fill()
store = make()
try:
    store.load()
except AerobeeError as error:
    assert ROOT in str(error) and "free space" in str(error), error
os.unlink(os.path.join(ROOT, "ballast"))
if not store.is_writable:
    store = make()
    store.load()
send(store, 400)
total = sum(store.max_offset("T", queue_id) for queue_id in range(3))
assert total == 401, total
asyncio.run(store.stop())
print("DONE")
"""

# As a copy by `cp --sparse` or rsync leaves files: pages of zeros have no space.
PUNCH = """
for directory, _, names in os.walk(os.path.join(ROOT, "store")):
    for name in names:
        path = os.path.join(directory, name)
        data = open(path, "rb").read()
        with open(path + ".new", "wb") as file:
            file.truncate(len(data))
            for at in range(0, len(data), 4096):
                if data[at:at + 4096].strip(b"\\0"):
                    file.seek(at); file.write(data[at:at + 4096])
        os.replace(path + ".new", path)
"""


def run(source: str, root: Path) -> str:
    """What it printed; a signal that ended it is an AssertionError."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + source, str(root)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.strip()


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(ROLL, id="files-are-due"),
        pytest.param(RESTART.format(end="abandon", punch=""), id="restart-after-a-crash"),
        pytest.param(RESTART.format(end="stop", punch=""), id="restart-after-a-clean-stop"),
        pytest.param(RESTART.format(end="abandon", punch=PUNCH), id="restart-of-a-sparse-copy"),
    ],
)
def test_a_full_tmpfs_is_an_error_and_never_a_signal(source: str) -> None:
    try:
        with small_file_system(24) as root:
            assert run(source, root) == "DONE"
    except NoMountRight as error:
        pytest.skip(f"no right to mount a small file system here: {error}")
