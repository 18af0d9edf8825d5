"""A store directory of tens of GB that takes little disk: sparse files, which both products open.

The log's files are full of records with bodies of 4 MB that are holes; the last file holds dense records of 1 KiB. Each record has
its entry in a queue, so that recovery finds nothing amiss. The first record is a timer that is due in a day: a broker that reads
the log from the oldest pending timer on reads all of it.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections import defaultdict
from pathlib import Path

from aerobee.message import MAGIC_BLANK, encode_properties, encode_record, pack_host
from aerobee.record_head import HEAD_V4, field_at
from aerobee.system_names import WHEEL_TIMER_TOPIC

FILE_BYTES = 1 << 30
BODY_BYTES = 4_100_000
SMALL_BODY_BYTES = 1024
QUEUES_PER_TOPIC = 8
QUEUE_FILE_BYTES = 300_000 * 20
BLANK = struct.Struct(">iI")
ENTRY = struct.Struct(">qiq")
CRC, SIZE = field_at("body_crc"), field_at("size")
DAY_MS = 86_400_000


def topic_of(number: int) -> str:
    return f"t{number:05d}"


class BigStore:
    """Writes the store. Records come in the order of the log; queues take turns."""

    def __init__(self, root: Path, *, gib: int, queues: int, tail_mib: int) -> None:
        self._root = root
        self._gib = gib
        self._queues = [
            (topic_of(number // QUEUES_PER_TOPIC), number % QUEUES_PER_TOPIC) for number in range(queues)
        ]
        self._tail_bytes = tail_mib << 20
        self._entries: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
        self._host = pack_host("127.0.0.1", 10911)
        self._hole_crc = zlib.crc32(bytes(BODY_BYTES)) & 0x7FFFFFFF
        self._time_ms = round(time.time() * 1000) - 3_600_000
        self._next = 0

    def write(self) -> None:
        log = self._root / "commitlog"
        log.mkdir(parents=True)
        for number in range(self._gib):
            base = number * FILE_BYTES
            fd = os.open(log / f"{base:020d}", os.O_RDWR | os.O_CREAT)
            try:
                os.ftruncate(fd, FILE_BYTES)
                at = self._timer(fd) if number == 0 else 0
                if number == self._gib - 1:
                    self._dense(fd, base)
                else:
                    self._sparse(fd, base, at)
            finally:
                os.close(fd)
        self._write_queues()
        self._write_topics()

    def _record(
        self, topic: str, queue_id: int, physical_offset: int, body: bytes, properties: bytes
    ) -> bytes:
        self._time_ms += 1
        return encode_record(
            topic=topic.encode(), queue_id=queue_id, queue_offset=len(self._entries[topic, queue_id]),
            physical_offset=physical_offset, body=body, properties=properties, born_timestamp=self._time_ms,
            store_timestamp=self._time_ms, born_host=self._host, store_host=self._host,
        )  # fmt: skip

    def _took(self, topic: str, queue_id: int, physical_offset: int, size: int) -> None:
        self._entries[topic, queue_id].append(ENTRY.pack(physical_offset, size, 0))

    def _timer(self, fd: int) -> int:
        """Write the pending timer; returns where it ends."""
        due_ms = (self._time_ms // 1000 + 86_400) * 1000
        properties = encode_properties(
            {
                "TIMER_DELIVER_MS": str(due_ms), "TIMER_OUT_MS": str(due_ms), "REAL_TOPIC": topic_of(0), "REAL_QID": "0",
                "UNIQ_KEY": "0" * 32,
            }
        ).encode()  # fmt: skip
        record = self._record(WHEEL_TIMER_TOPIC, 0, 0, b"timer", properties)
        os.pwrite(fd, record, 0)
        self._took(WHEEL_TIMER_TOPIC, 0, 0, len(record))
        return len(record)

    def _turn(self) -> tuple[str, int]:
        self._next += 1
        return self._queues[(self._next - 1) % len(self._queues)]

    def _sparse(self, fd: int, base: int, at: int) -> None:
        while True:
            topic, queue_id = self._queues[self._next % len(self._queues)]
            data = bytearray(self._record(topic, queue_id, base + at, b"", b""))
            size = len(data) + BODY_BYTES
            if at + size + BLANK.size > FILE_BYTES:
                os.pwrite(fd, BLANK.pack(FILE_BYTES - at, MAGIC_BLANK), at)
                return
            self._turn()
            struct.pack_into(">I", data, SIZE, size)
            struct.pack_into(">I", data, CRC, self._hole_crc)
            struct.pack_into(">I", data, HEAD_V4.size - 4, BODY_BYTES)
            os.pwrite(fd, data[: HEAD_V4.size], at)
            os.pwrite(fd, data[HEAD_V4.size :], at + HEAD_V4.size + BODY_BYTES)
            self._took(topic, queue_id, base + at, size)
            at += size

    def _dense(self, fd: int, base: int) -> None:
        body, at = b"x" * SMALL_BODY_BYTES, 0
        while at < self._tail_bytes:
            records = bytearray()
            while len(records) < 1 << 20:
                topic, queue_id = self._turn()
                record = self._record(topic, queue_id, base + at + len(records), body, b"")
                self._took(topic, queue_id, base + at + len(records), len(record))
                records += record
            os.pwrite(fd, records, at)
            at += len(records)

    def _write_queues(self) -> None:
        for (topic, queue_id), entries in self._entries.items():
            directory = self._root / "consumequeue" / topic / str(queue_id)
            directory.mkdir(parents=True)
            with (directory / f"{0:020d}").open("wb") as file:
                file.write(b"".join(entries))
                file.truncate(QUEUE_FILE_BYTES)

    def _write_topics(self) -> None:
        table = {
            topic: {
                "topicName": topic, "readQueueNums": QUEUES_PER_TOPIC, "writeQueueNums": QUEUES_PER_TOPIC, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
            }
            for topic, _ in self._queues
        }  # fmt: skip
        config = self._root / "config"
        config.mkdir()
        tree = {"topicConfigTable": table, "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 0}}
        (config / "topics.json").write_text(json.dumps(tree))


def drop_cached(root: Path) -> None:
    """Ask the system to drop the cached pages of a directory's files, so that the next read of each waits for the disk."""
    for directory, _, names in os.walk(root):
        for name in names:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY)
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
