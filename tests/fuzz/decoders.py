"""Arbitrary bytes, guided by coverage (atheris, libFuzzer), for every decoder of peers' bytes and of files.

    pip install 'aerobee[fuzz]'
    python tests/fuzz/decoders.py [--seconds 60] [--targets frame,record]
    python tests/fuzz/decoders.py --replay 0a1b2c --targets record      # one input again, in hex, with its traceback

What each decoder must hold is in decoder_targets.py. Each target is one process, one after the other, which starts with
the inputs of tests/data/fuzz/{target}.hex and a few well-formed ones. --keep writes the inputs that reach more lines than
all smaller ones back to that file. Ends with status 1 and the input in hex when something does not hold.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerobee.message import encode_properties, encode_record, pack_host
from aerobee.store.files.checkpoint import Checkpoint
from aerobee.store.index.index_file import HEADER, INDEX_ENTRY
from aerobee.store.queue.batch_consume_queue import BATCH_ENTRY
from aerobee.store.queue.consume_queue import ENTRY
from aerobee.store.queue.extended_queue import ADDRESS_BASE, UNIT
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint
from tests.captures import capture_names, captured
from tests.fuzz.decoder_targets import EXTENSION_FILE_BYTES, INDEX_SLOTS, QUEUE_FILE_BYTES, TARGETS

CORPUS = Path(__file__).resolve().parents[1] / "data" / "fuzz"
INPUT_BYTES_MAX = 1024
MEMORY_MB_MAX = 1024
CAPTURED_FRAMES = 60
EXECUTED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")
Arc = tuple[str, int, int]


def corpus_of(target: str) -> list[bytes]:
    """The inputs that are kept for a target."""
    path = CORPUS / f"{target}.hex"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


# -- well-formed inputs to begin with


def well_formed(target: str) -> list[bytes]:
    bound = (1500).to_bytes(2, "big")
    if target in ("frame", "json_header", "binary_header"):
        return list(_captured(target))
    if target == "record":
        return [
            _record(sys_flag, topic, properties)
            for sys_flag in (0, 8, 0x80, 0x30)
            for topic in (b"T", b"t" * 200, b"SCHEDULE_TOPIC_XXXX")
            for properties in (
                {},
                {"TAGS": "A", "KEYS": "k1 k2", "UNIQ_KEY": "u", "DELAY": "3", "INNER_NUM": "4"},
            )
        ]
    if target == "queue_entries":
        return [
            bound + b"".join(ENTRY.pack(at * 100, 100, at) for at in range(count)) for count in (3, 10, 25)
        ]
    if target == "extended_entries":
        units = (UNIT.pack(22, 7, 1, 2) + b"\xff\x01").ljust(EXTENSION_FILE_BYTES, b"\0")
        entries = b"".join(ENTRY.pack(at * 100, 100, ADDRESS_BASE + at % 2 * 22) for at in range(9))
        return [bound + entries.ljust(QUEUE_FILE_BYTES, b"\0") + units * 3]
    if target == "batch_entries":
        return [
            bound + b"".join(BATCH_ENTRY.pack(at * 100, 100, 7, at, at * 3, 3, at, 0) for at in range(count))
            for count in (2, 5, 12)
        ]
    if target == "key_index":
        slots, blank = struct.pack(f">{INDEX_SLOTS}i", 0, 4, 2, 3), bytes(INDEX_ENTRY.size)
        entries = ((1, 0, 0, 0), (2, 200, 0, 0), (3, 300, 1, 0), (5, 1900, 1, 1))
        early = (1, 200, -5, 0)  # before a time that is the earliest already
        return [
            bound
            + HEADER.pack(1, 9, 100, 1900, 3, 5)
            + slots
            + blank
            + b"".join(INDEX_ENTRY.pack(*entry) for entry in entries),
            bound
            + HEADER.pack(-(1 << 63), 9, 100, 1900, 1, 2)
            + struct.pack(">4i", 0, 1, 0, 0)
            + blank
            + INDEX_ENTRY.pack(*early),
        ]
    checkpoint = Checkpoint(log_timestamp=5, queues_timestamp=4)
    checkpoint.log_flushed, checkpoint.queues_flushed = 900, 800
    timer = TimerCheckpoint(read_time_ms=5, log_flushed=100, queue_offset=7, scan_from=52, is_closed=True)
    return [checkpoint.encode()[:256], timer.encode()[:256]]


def _captured(target: str) -> Iterator[bytes]:
    frames = [
        frame for name in capture_names() for frame in captured(name) if len(frame.data) < INPUT_BYTES_MAX
    ]
    for found in random.Random(1).sample(frames, CAPTURED_FRAMES):
        length = int.from_bytes(found.data[5:8], "big")
        if target == "frame":
            yield b"\x07" + found.data
        elif found.is_json == (target == "json_header"):
            yield found.data[8 : 8 + length]


def _record(sys_flag: int, topic: bytes, properties: dict[str, str]) -> bytes:
    host = pack_host("::1" if sys_flag & 0x30 else "127.0.0.1", 10911)
    return encode_record(
        topic=topic,
        queue_id=1,
        queue_offset=7,
        physical_offset=1000,
        body=b"body",
        properties=encode_properties(properties).encode(),
        sys_flag=sys_flag,
        born_host=host,
        store_host=host,
    )


# -- running


def fuzz(target: str, seconds: int, seed: int, inputs: Iterable[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Run one target. Returns its figures, and the inputs that reached something new. `fault` is an input in hex."""
    with tempfile.TemporaryDirectory(prefix="aerobee-fuzz-") as name:
        directory, faults = Path(name, "corpus"), Path(name, "fault-")
        directory.mkdir()
        for number, data in enumerate(inputs):
            (directory / f"{number}").write_bytes(data)
        done = subprocess.run(
            [
                *(
                    sys.executable,
                    str(Path(__file__).with_name("atheris_process.py")),
                    target,
                    str(directory),
                ),
                *(
                    f"-max_total_time={seconds}",
                    f"-max_len={INPUT_BYTES_MAX}",
                    f"-seed={seed}",
                    "-timeout=10",
                ),
                *(f"-rss_limit_mb={MEMORY_MB_MAX}", "-print_final_stats=1", f"-artifact_prefix={faults}"),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + 120,
            check=False,
        )
        executed, covered = EXECUTED.search(done.stderr), COVERAGE.findall(done.stderr)
        figures: dict[str, Any] = {
            "target": target,
            "seconds": seconds,
            "inputs": int(executed[1]) if executed else 0,
            "edges": int(covered[-1][0]) if covered else 0,
            "fault": "",
        }
        if done.returncode:
            found = sorted(Path(name).glob("fault-*"))
            figures["fault"] = found[0].read_bytes().hex() if found else done.stderr[-2000:]
        return figures, [path.read_bytes() for path in sorted(directory.iterdir())]


def reaching_more(target: Callable[[bytes], None], inputs: Iterable[bytes]) -> list[bytes]:
    """The inputs that take a step from line to line that none of the smaller ones takes."""
    seen: set[Arc] = set()
    kept = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        arcs = _arcs(target, data)
        if not arcs <= seen:
            seen |= arcs
            kept.append(data)
    return kept


def _arcs(target: Callable[[bytes], None], data: bytes) -> set[Arc]:
    arcs: set[Arc] = set()

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if "/aerobee/" not in frame.f_code.co_filename or "/testing/" in frame.f_code.co_filename:
            return None
        last = 0

        def step(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            if event == "line":
                arcs.add((frame.f_code.co_filename, last, frame.f_lineno))
                last = frame.f_lineno
            return step

        return step

    sys.settrace(enter)
    try:
        target(data)
    finally:
        sys.settrace(None)
    return arcs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 31))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--replay", metavar="HEX")
    options = parser.parse_args()
    names = options.targets.split(",")
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}: {', '.join(TARGETS)}")
    if options.replay is not None:
        for name in names:
            TARGETS[name](bytes.fromhex(options.replay))
        return
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: pip install 'aerobee[fuzz]'")
    failed = False
    for name in names:
        inputs = [*corpus_of(name), *(data for data in well_formed(name) if len(data) <= INPUT_BYTES_MAX)]
        figures, reached = fuzz(name, options.seconds, options.seed, inputs)
        failed |= bool(figures["fault"])
        if options.keep and not figures["fault"]:
            kept = reaching_more(TARGETS[name], (*inputs, *reached))
            CORPUS.mkdir(exist_ok=True)
            (CORPUS / f"{name}.hex").write_text("".join(f"{data.hex()}\n" for data in kept))
            figures["kept"] = len(kept)
        print(json.dumps({**figures, "seed": options.seed}), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
