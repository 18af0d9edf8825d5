"""Damage to stores, and what must be true afterwards.

    python tests/abuse/damage.py [--cases 10000] [--first 1] [--only ours-flushed]

A case is a number. It takes a store, ours or one of RocketMQ's, closed or killed, does something to one or two of its
files, and starts it. What must hold:

- the start ends: with a store that works or with one sentence, never with anything else;
- a refusal names the file, its directory or the bytes, and with `truncateCorruptLog=true` the rest starts;
- every message whose record is whole is served under its offset;
- a message that is not served is said to be missing;
- no offset that a message ever had is given to another one;
- the next start shows the same.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerobee.clock import ManualClock
from aerobee.errors import AerobeeError, ConfigError
from aerobee.message import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_PREPARED, encode_properties
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import MappedFile, RealDisk
from aerobee.store.log.dispatch import ScanKind, scan_record
from aerobee.store.log.stored_message import GetStatus, StoredMessage
from aerobee.store.message_store import MessageStore

DATA = Path(__file__).parents[1] / "data" / "store"
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
OURS = ("ours-clean", "ours-crashed")
ROCKETMQ = ("clean-shutdown", "killed", "batch-consume-queue", "controller-a")
KINDS = OURS * 3 + ROCKETMQ
# Killed with the log on the disk to its end, and queues and index too, or up to the half.
FLUSHED = ("ours-flushed", "ours-log-flushed")
Key = tuple[str, int]


class Fault(Exception):
    """A promise was broken."""


class Refused(RealDisk):
    """A disk on which the process may not open one file."""

    def __init__(self, path: str, code: int) -> None:
        super().__init__()
        self._path, self._code = path, code

    def _check(self, path: str) -> None:
        if path == self._path:
            raise OSError(self._code, os.strerror(self._code), path)

    def open_mapped(self, path: str) -> MappedFile:
        self._check(path)
        return super().open_mapped(path)

    def read_file(self, path: str) -> bytes:
        self._check(path)
        return super().read_file(path)


class Rebooted(RealDisk):
    """A disk after a loss of power."""

    @property
    def boot_id(self) -> bytes:
        return bytes(16)


class Heard(logging.Handler):
    """What the log says."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@dataclass(slots=True)
class Kept:
    """A message of a base store: where it is, and its bytes."""

    offset: int
    physical: int
    record: bytes


@dataclass(slots=True)
class Base:
    """An undamaged store and what is in it."""

    root: Path
    config: dict[str, Any]
    queues: dict[Key, list[Kept]] = field(default_factory=dict)
    ends: dict[Key, int] = field(default_factory=dict)

    def make(self, root: Path, disk: RealDisk | None = None, **changes: Any) -> MessageStore:
        config = StoreConfig(store_path_root_dir=str(root), **{**self.config, **changes})
        return MessageStore(config, disk=disk or RealDisk(), clock=ManualClock(), store_host=lambda: HOST)


# -- the base stores


def message(rng: random.Random, topic: str, queue_id: int, number: int, **more: Any) -> StoredMessage:
    properties = {"KEYS": f"k{number}", "TAGS": rng.choice(("A", "B"))}
    if "INNER_NUM" in more:
        properties["INNER_NUM"] = more.pop("INNER_NUM")
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=rng.randbytes(rng.randint(1, 900)),
        properties=encode_properties(properties).encode(),
        born_timestamp=1,
        born_host=HOST,
        **more,
    )


def fill(store: MessageStore, rng: random.Random, count: int) -> None:
    """Messages of every kind that the log knows."""
    for number in range(count):
        kind = rng.random()
        if kind < 0.6:
            store.append(message(rng, "orders", rng.randrange(3), number))
        elif kind < 0.7:
            store.append(message(rng, "%RETRY%group", 0, number))
        elif kind < 0.8:
            batch = rng.randint(2, 5)
            store.append(message(rng, "batches", 0, number, sys_flag=INNER_BATCH, INNER_NUM=str(batch)))
        elif kind < 0.9:
            store.append(message(rng, "RMQ_SYS_TRANS_HALF_TOPIC", 0, number))
            store.append(message(rng, "orders", 0, number, sys_flag=TRANSACTION_PREPARED))
        else:
            store.append(message(rng, "orders", 1, number, sys_flag=TRANSACTION_COMMIT))


def make_ours(root: Path, *, crashed: bool, flushed: str = "half") -> Base:
    """`flushed`: up to where the checkpoint calls the log durable and up to where the queues: "half" of both, the whole "log",
    or "all" of both."""
    base = Base(
        root,
        {
            "mapped_file_size_commit_log": 16_384,
            "mapped_file_size_consume_queue": 400,
            "mapper_file_size_batch_consume_queue": 460,
            "max_hash_slot_num": 32,
            "max_index_num": 100,
            "commit_log_reserve_bytes": 16_384,
        },
    )
    rng = random.Random(7)
    store = base.make(root)
    store.load()
    store.set_batch_topic("batches", True)
    fill(store, rng, 150)
    store.append(message(rng, "quiet", 0, 1))
    store.flush_now()
    store.flush_queues_now()
    half = store.log.end
    fill(store, rng, 60)
    read_base(base, store)
    if flushed == "all":
        store.flush_now()
        store.flush_queues_now()
    elif flushed == "log":
        store.flush_now()
        store._files.checkpoints.must_write(store._checkpointing.next(half))
    asyncio.run(store.abandon() if crashed else store.stop())
    return base


def unpack_rocketmqs(name: str, directory: Path) -> Base:
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        members = [member for member in archive.getmembers() if not member.name.endswith("/timerwheel")]
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(directory, members)
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 262_144,
        "mapped_file_size_consume_queue": 4_000,
        "mapper_file_size_batch_consume_queue": 4_600,
        "max_hash_slot_num": 500,
        "max_index_num": 2_000,
    }
    if name.startswith("controller"):
        sizes.update(
            mapped_file_size_commit_log=1_048_576,
            mapped_file_size_consume_queue=20_000,
            mapper_file_size_batch_consume_queue=13_800_000,
            max_hash_slot_num=1_000,
            max_index_num=4_000,
        )
    base = Base(directory / name, sizes)
    copy = directory / (name + "-looked-at")
    shutil.copytree(base.root, copy)
    store = base.make(copy)
    store.load()
    read_base(base, store)
    asyncio.run(store.stop())
    shutil.rmtree(copy)
    return base


def read_base(base: Base, store: MessageStore) -> None:
    for key in store.queues:
        base.queues[key] = read_queue(store, key)
        base.ends[key] = store.next_offset(*key)


def read_queue(store: MessageStore, key: Key) -> list[Kept]:
    """What a consumer gets from the queue's beginning to its end."""
    found: list[Kept] = []
    offset, end = store.min_offset(*key), store.max_offset(*key)
    while offset < end:
        result = store.get_messages(*key, offset, count_max=32)
        if result.status is GetStatus.FOUND:
            found += cut_records(result.body)
        if result.next_offset <= offset:
            raise Fault(f"reading {key} stands still at {offset} of {end}: {result.status}")
        offset = result.next_offset
    return found


def cut_records(data: bytes) -> list[Kept]:
    kept = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        record = data[at : at + size]
        kept.append(Kept(int.from_bytes(record[20:28], "big"), int.from_bytes(record[28:36], "big"), record))
        at += size
    return kept


# -- the damage


def candidates(root: Path) -> list[Path]:
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and path.parent.name not in ("config", "rocksdbstore", "timerlog")
        and path.name not in ("lock", "timerwheel", "abort.bak")
    )


def remove(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "removed"


def cut(path: Path, rng: random.Random) -> str:
    size = rng.randrange(path.stat().st_size) if path.stat().st_size else 0
    os.truncate(path, size)
    return f"cut to {size}"


def zero(path: Path, rng: random.Random) -> str:
    path.write_bytes(bytes(path.stat().st_size))
    return "zeroed"


def _stretch(path: Path, rng: random.Random) -> tuple[bytearray, int, int]:
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0")) or 1
    start = rng.randrange(used)
    return data, start, min(len(data), start + rng.choice((1, 4, 20, 100, 512, 4096)))


def zero_part(path: Path, rng: random.Random) -> str:
    data, start, stop = _stretch(path, rng)
    data[start:stop] = bytes(stop - start)
    path.write_bytes(data)
    return f"zeroed from {start} to {stop}"


def garbage(path: Path, rng: random.Random) -> str:
    data, start, stop = _stretch(path, rng)
    data[start:stop] = rng.randbytes(stop - start)
    path.write_bytes(data)
    return f"garbage from {start} to {stop}"


def all_garbage(path: Path, rng: random.Random) -> str:
    path.write_bytes(rng.randbytes(path.stat().st_size))
    return "garbage"


def flip(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    offsets = [rng.randrange(used) for _ in range(rng.choice((1, 1, 1, 2, 8)))] if used else []
    for at in offsets:
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"bits flipped at {offsets}"


def swap(path: Path, rng: random.Random) -> str:
    other = rng.choice([each for each in candidates(path.parents[0]) if each != path] or [path])
    held = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(held)
    return f"swapped with {other.name}"


def remove_directory(path: Path, rng: random.Random) -> str:
    shutil.rmtree(path.parent)
    return "removed with its directory"


DAMAGES: tuple[Callable[[Path, random.Random], str], ...] = (
    remove, cut, zero, zero_part, zero_part, garbage, all_garbage, flip, flip, swap, remove_directory,
)  # fmt: skip


# -- one case


class Case:
    """One damaged copy of a base store."""

    def __init__(self, number: int, base: Base, root: Path) -> None:
        self.rng = random.Random(number)
        self.base = base
        self.root = root
        self.disk: RealDisk = RealDisk()
        self.done: list[str] = []
        self.names: set[str] = set()
        self.heard = Heard()

    def damage(self) -> None:
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            files = candidates(self.root)
            if not files:
                return
            # As many of each directory, whatever number of files it has.
            directory = self.rng.choice(sorted({path.parent for path in files}))
            path = self.rng.choice([path for path in files if path.parent == directory])
            if directory == self.root and self.rng.random() < 0.7:
                continue
            self.names |= {path.name, path.parent.name, str(path.parent)}
            self.names |= {path.parent.parent.name} - {self.root.name}  # of a queue: its topic
            if self.rng.random() < 0.04:
                code = self.rng.choice((errno.EACCES, errno.EIO))
                self.disk = Refused(str(path), code)
                self.done.append(f"{path.relative_to(self.root)}: {errno.errorcode[code]}")
                continue
            damage = self.rng.choice(DAMAGES)
            if damage is remove_directory and directory == self.root:
                damage = remove
            if damage is swap:
                self.names |= {each.name for each in candidates(path.parent)}
            try:
                self.done.append(f"{path.relative_to(self.root)}: {damage(path, self.rng)}")
            except ValueError as error:
                raise Fault(f"{path}: {error}") from error

    def bytes_at(self, kept: Kept) -> bytes:
        """What stands now where a message's record was."""
        size = self.base.config["mapped_file_size_commit_log"]
        first = min((int(path.name) for path in (self.base.root / "commitlog").iterdir()), default=0)
        base = kept.physical - (kept.physical - first) % size
        try:
            with (self.root / "commitlog" / f"{base:020d}").open("rb") as file:
                file.seek(kept.physical - base)
                return file.read(len(kept.record))
        except OSError:
            return b""

    def whole(self, kept: Kept) -> bool:
        """Whether the message's record is still on the disk, every byte of it."""
        return self.bytes_at(kept) == kept.record

    def passes(self, kept: Kept) -> bool:
        """Whether the record passes for another one: a bit of its topic or queue changed, which no checksum covers."""
        data = self.bytes_at(kept)
        return scan_record(data, kept.physical, check_crc=True).kind is ScanKind.RECORD

    @staticmethod
    def is_same_message(kept: Kept, found: Kept) -> bool:
        """A record that is damaged, but not in its size and offset. Its reader detects it by the body's CRC or by parts that do
        not fit; topic, properties and other fields have no checksum in RocketMQ's format."""
        return found.record[:4] == kept.record[:4] and found.record[28:36] == kept.record[28:36]

    def run(self) -> str:
        self.damage()
        whole = {
            key: [kept for kept in messages if self.whole(kept)] for key, messages in self.base.queues.items()
        }
        logger = logging.getLogger("aerobee.store")
        logger.addHandler(self.heard)
        logger.propagate = False
        try:
            return self._start(whole)
        finally:
            logger.removeHandler(self.heard)

    def _start(self, whole: dict[Key, list[Kept]]) -> str:
        store = self.base.make(self.root, self.disk)
        outcome = "started"
        try:
            store.load()
        except AerobeeError as error:
            self._judge_refusal(error)
            outcome = f"refused: {type(error).__name__}"
            self.disk = RealDisk()
            store = self.base.make(self.root, truncate_corrupt_log=True)
            try:
                store.load()
            except ConfigError:
                return outcome
            except AerobeeError as second:
                raise Fault(f"refused also with truncateCorruptLog: {second}; first: {error}") from second
        first = self._judge_content(store, whole)
        self._judge_new_offsets(store, outcome)
        self.heard.lines.clear()
        asyncio.run(store.stop())
        store = self.base.make(self.root)
        try:
            store.load()
        except AerobeeError as error:
            raise Fault(f"{outcome}, and the next start is refused: {error}") from error
        second_read = {
            key: [(kept.offset, kept.physical) for kept in read_queue(store, key)] for key in first
        }
        for key, messages in first.items():
            if second_read[key][: len(messages)] != messages:
                raise Fault(f"{outcome}, and the next start shows other messages of {key}")
        asyncio.run(store.stop())
        return outcome

    def _judge_refusal(self, error: AerobeeError) -> None:
        text = str(error)
        if not any(name in text for name in self.names) and "log bytes" not in text:
            raise Fault(f"the refusal names none of {sorted(self.names)}: {text}")
        if "\n" in text or "Traceback" in text:
            raise Fault(f"the refusal is no sentence: {text}")

    def _judge_content(
        self, store: MessageStore, whole: dict[Key, list[Kept]]
    ) -> dict[Key, list[tuple[int, int]]]:
        seen: dict[Key, list[tuple[int, int]]] = {}
        for key, messages in self.base.queues.items():
            found = read_queue(store, key)
            seen[key] = [(kept.offset, kept.physical) for kept in found]
            offsets = [kept.offset for kept in found]
            if len(set(offsets)) != len(offsets):
                raise Fault(f"{key} serves an offset twice: {offsets}")
            records = {kept.record for kept in found}
            for kept in whole[key]:
                if kept.record not in records:
                    raise Fault(
                        f"{key} message {kept.offset} at {kept.physical} is whole and not served; heard: "
                        f"{self.heard.lines[:5]}"
                    )
            known = {kept.physical: kept for kept in messages}
            for kept in found:
                before = known.get(kept.physical)
                if before is None or (
                    kept.record != before.record and not self.is_same_message(before, kept)
                ):
                    raise Fault(f"{key} serves {kept.offset} at {kept.physical}, which was never stored so")
            lost = [kept for kept in messages if kept.record not in records and not self.passes(kept)]
            if lost and len(found) < len(messages) and not self.heard.lines:
                raise Fault(f"{key} serves {len(found)} of {len(messages)} messages, and nothing is said")
        return seen

    def _judge_new_offsets(self, store: MessageStore, outcome: str) -> None:
        said = [line.partition(": ")[2] for line in self.heard.lines]
        for (topic, queue_id), end in self.base.ends.items():
            if not end or not store.is_writable:
                continue
            sent = message(self.rng, topic, queue_id, 1)
            given = store.append(sent).queue_offset
            # Two files lost together may be the only two that knew: the log's end and the queue's. And what RocketMQ left when it was
            # killed may have lost power too: then the end of its log is where it ends.
            is_known_shorter = any(
                f"queue {topic} {queue_id} ended at {end} and ends" in line for line in said
            )
            if given < end and not is_known_shorter and not {topic, str(queue_id)} <= self.names:
                raise Fault(f"{outcome}: {topic} {queue_id} gives {given} again, it had ended at {end}")


def make_bases(directory: Path, kinds: tuple[str, ...]) -> dict[str, Base]:
    bases = {}
    for kind in sorted(set(kinds)):
        if kind in OURS:
            bases[kind] = make_ours(directory / kind, crashed=kind == "ours-crashed")
        elif kind in FLUSHED:
            flushed = "all" if kind == "ours-flushed" else "log"
            bases[kind] = make_ours(directory / kind, crashed=True, flushed=flushed)
        else:
            bases[kind] = unpack_rocketmqs(kind, directory)
    return bases


def run_case(number: int, bases: dict[str, Base], kinds: tuple[str, ...], directory: Path) -> tuple[str, str]:
    """Run one case. Returns the kind of store and the outcome; raises Fault."""
    kind = kinds[number % len(kinds)]
    base = bases[kind]
    root = directory / f"case-{number}"
    shutil.copytree(base.root, root)
    case = Case(number, base, root)
    if kind in FLUSHED and case.rng.random() < 0.5:
        case.disk = Rebooted()
    try:
        outcome = case.run()
    except Fault as fault:
        raise Fault(f"case {number} of {kind}: {case.done}: {fault}") from fault
    except Exception as error:
        raise Fault(f"case {number} of {kind}: {case.done}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return kind, outcome


def run_cases(first: int, count: int, kinds: tuple[str, ...] = KINDS) -> dict[str, int]:
    """Run cases [first, first + count). Raises Fault; returns how many ended how."""
    outcomes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="aerobee-damage-") as name:
        directory = Path(name)
        bases = make_bases(directory, kinds)
        for number in range(first, first + count):
            kind, outcome = run_case(number, bases, kinds, directory)
            outcomes[f"{kind}: {outcome}"] = outcomes.get(f"{kind}: {outcome}", 0) + 1
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", choices=sorted({*KINDS, *FLUSHED}))
    parser.add_argument(
        "--keep-going", action="store_true", help="count faults instead of ending at the first"
    )
    options = parser.parse_args()
    kinds = (options.only,) if options.only else KINDS
    started = time.monotonic()
    faults = 0
    if options.keep_going:
        with tempfile.TemporaryDirectory(prefix="aerobee-damage-") as name:
            bases = make_bases(Path(name), kinds)
            for number in range(options.first, options.first + options.cases):
                try:
                    run_case(number, bases, kinds, Path(name))
                except Fault as fault:
                    faults += 1
                    print(f"FAULT: {str(fault)[:1500]}")
        print(f"{faults} faults in {options.cases} cases, {time.monotonic() - started:.0f} s")
        sys.exit(1 if faults else 0)
    try:
        outcomes = run_cases(options.first, options.cases, kinds)
    except Fault as fault:
        print(f"FAULT: {fault}", file=sys.stderr)
        sys.exit(1)
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:6} {outcome}")
    print(f"no fault in {options.cases} cases, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
