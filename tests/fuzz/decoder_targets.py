"""What a decoder must hold for any bytes at all: a function of bytes for each kind, raising only when it does not.

Frames, both kinds of header, records, queue entries of the three kinds, units of the extension, the key index and the
checkpoints. Each says no with its own error and with nothing else; what it takes means the same when it is written and
read again, or when it is cut elsewhere. Run by tests/fuzz/decoders.py under coverage guidance; what that found worth
keeping lies in tests/data/fuzz and is replayed by tests/unit/test_fuzz_corpus.py.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from aerobee.errors import MalformedFrame, MalformedRecord, UsageError, WireError
from aerobee.message import (
    INNER_BATCH,
    Record,
    decode_properties,
    decode_record,
    decode_records,
    encode_properties,
    encode_record,
)
from aerobee.remoting.binary_header import decode_binary_header, encode_binary_header
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.remoting.json_header import decode_json_header, encode_json_header
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.checkpoint import decode_checkpoint
from aerobee.store.files.config import BATCH_QUEUE_ENTRY_BYTES
from aerobee.store.index.index_file import HEADER_BYTES, INDEX_ENTRY_BYTES, IndexFile, key_hash
from aerobee.store.log.dispatch import (
    DispatchRecord,
    ScanKind,
    batch_size_of,
    entry_tags_code,
    index_texts,
    scan_record,
)
from aerobee.store.queue.batch_consume_queue import BatchConsumeQueue, BatchEntry
from aerobee.store.queue.consume_queue import ENTRY_BYTES, ConsumeQueue
from aerobee.store.queue.extended_queue import ExtendedQueue, QueueExtension
from aerobee.store.queue.queue_files import FilePool
from aerobee.store.timer.timer_checkpoint import decode_timer_checkpoint
from aerobee.system_names import SCHEDULE_TOPIC

BINARY = SerializeType.ROCKETMQ.value
FRAME_BYTES_MAX = 4096
QUEUE_FILE_BYTES = 10 * ENTRY_BYTES
BATCH_FILE_BYTES = 5 * BATCH_QUEUE_ENTRY_BYTES
EXTENSION_FILE_BYTES = 128
QUEUE_FILES_MAX = 3
INDEX_SLOTS, INDEX_ENTRIES = 4, 12
BOUND_MAX = 4096
ALL_TIMES = (-(1 << 64), 1 << 64)
DELAY_LEVELS_MS = (1000, 5000)
DIRECTORY = "/store/consumequeue/T/0"
EXTENSION_DIRECTORY = "/store/consumequeue_ext/T/0"


def frame(data: bytes) -> None:
    """The first byte says in which pieces the rest arrives: that must not matter."""
    step, stream = (data[0] or 1, data[1:]) if data else (1, b"")
    whole = _frames(stream, len(stream) or 1)
    pieces = _frames(stream, step)
    assert whole == pieces, "other frames when they come in pieces"
    for command in whole[0]:
        _same_again(command, encode_frame)


def _frames(stream: bytes, step: int) -> tuple[list[RemotingCommand], str]:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    commands: list[RemotingCommand] = []
    try:
        for at in range(0, len(stream), step):
            decoder.feed(stream[at : at + step])
            while (command := decoder.next_frame()) is not None:
                commands.append(command)
    except WireError as error:
        return commands, str(error)
    return commands, ""


def _same_again(command: RemotingCommand, encode: Callable[[RemotingCommand], bytes]) -> None:
    """What was read, written and read again is the same. A binary header knows no empty fields, only none."""
    if command.serialize_type == BINARY:
        command.ext = command.ext or None
    try:
        once = encode(command)
    except UsageError:
        return  # a binary header has less space: for the code, for names
    again = _frames(once, len(once))[0][0] if encode is encode_frame else _header(once, command)
    assert again == command, f"{command} was written and read as {again}"


def _header(header: bytes, command: RemotingCommand) -> RemotingCommand:
    decode = decode_binary_header if command.serialize_type == BINARY else decode_json_header
    return decode(header, command.body)


def json_header(data: bytes) -> None:
    try:
        command = decode_json_header(data, b"body")
    except MalformedFrame:
        return
    _same_again(command, encode_json_header)


def binary_header(data: bytes) -> None:
    try:
        command = decode_binary_header(data, b"body")
    except MalformedFrame:
        return
    _same_again(command, encode_binary_header)


def record(data: bytes) -> None:
    """A record as a client reads it and as recovery scans it: what recovery takes every client can read."""
    for check_crc in (False, True):
        scan = scan_record(data, _own_offset(data), check_crc=check_crc)
        try:
            found = decode_record(data, check_crc=check_crc)
        except MalformedRecord:
            found = None
        if scan.kind is ScanKind.RECORD:
            assert scan.record is not None
            assert found is not None, "recovery takes what no client can read"
            assert scan.size == scan.record.size == found.total_size
            assert (scan.record.topic, scan.record.queue_id) == (found.topic, found.queue_id)
            assert scan.record.queue_offset == found.queue_offset
            assert decode_properties(scan.record.properties) == found.properties
            _dispatched(scan.record)
        if found is not None:
            _written_again(found)
            assert [found] == list(decode_records(data[: found.total_size], check_crc=check_crc))


def _own_offset(data: bytes) -> int:
    return int(struct.unpack_from(">q", data, 28)[0]) if len(data) >= 36 else 0


def _dispatched(found: DispatchRecord) -> None:
    """What the queues and the index get of it."""
    properties = decode_properties(found.properties)
    for text in index_texts(properties):
        assert key_hash(f"{found.topic}#{text}") >= 0
    code = entry_tags_code(found.topic, properties, found.store_timestamp, DELAY_LEVELS_MS)
    entry_tags_code(SCHEDULE_TOPIC, properties, 0, DELAY_LEVELS_MS)
    assert -(1 << 63) <= code < 1 << 63
    assert batch_size_of(INNER_BATCH, properties) >= 1


def _written_again(found: Record) -> None:
    try:
        properties = encode_properties(found.properties).encode(errors="surrogateescape")
        again = encode_record(
            topic=found.topic.encode(),
            queue_id=found.queue_id,
            queue_offset=found.queue_offset,
            physical_offset=found.physical_offset,
            body=found.body,
            properties=properties,
            flag=found.flag,
            sys_flag=found.sys_flag,
            born_host=bytes(8),
            store_host=bytes(8),
        )
    except UsageError:
        return  # longer than what is taken from producers
    second = decode_record(again)
    assert (second.topic, second.body, second.properties) == (found.topic, found.body, found.properties)


def _disk_with(directory: str, data: bytes, file_bytes: int) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(1))
    _add_files(disk, directory, data, file_bytes)
    return disk


def _add_files(disk: SimulatedDisk, directory: str, data: bytes, file_bytes: int) -> None:
    disk.make_dirs(directory)
    for base in range(0, min(len(data), QUEUE_FILES_MAX * file_bytes), file_bytes):
        part = data[base : base + file_bytes]
        file = disk.create_mapped(f"{directory}/{base:020d}", file_bytes)
        file.buffer[: len(part)] = part


def _bound(data: bytes) -> tuple[int, bytes]:
    """Up to where the log is there, and the rest."""
    return int.from_bytes(data[:2], "big") % BOUND_MAX, data[2:]


def queue_entries(data: bytes) -> None:
    """Files of a consume queue: it ends somewhere, whatever stands in them, can be cut there and grows again."""
    bound, content = _bound(data)
    disk = _disk_with(DIRECTORY, content, QUEUE_FILE_BYTES)
    queue = ConsumeQueue("T", 0, DIRECTORY, QUEUE_FILE_BYTES, FilePool(disk))
    queue.load()
    _used(queue, bound)


def extended_entries(data: bytes) -> None:
    """The same with an extension: the first half are entries, the second half units."""
    bound, content = _bound(data)
    half = len(content) // 2
    disk = _disk_with(DIRECTORY, content[:half], QUEUE_FILE_BYTES)
    _add_files(disk, EXTENSION_DIRECTORY, content[half:], EXTENSION_FILE_BYTES)
    pool = FilePool(disk)
    extension = QueueExtension(EXTENSION_DIRECTORY, EXTENSION_FILE_BYTES, pool)
    queue = ExtendedQueue(
        "T", 0, DIRECTORY, QUEUE_FILE_BYTES, pool, extension, lambda: lambda *_: b"\xff", writes=True
    )
    queue.load()
    for offset in range(queue.min_offset, queue.max_offset):
        queue.matching_entries(offset, 5, frozenset((1, 2)), lambda bitmap, at: bool(bitmap) and at > 0)
    _used(queue, bound)


def _used(queue: ConsumeQueue, bound: int) -> None:
    assert 0 <= queue.min_offset <= queue.max_offset <= QUEUE_FILES_MAX * QUEUE_FILE_BYTES // ENTRY_BYTES
    assert len(queue.entries(queue.min_offset, 1000)) == queue.max_offset - queue.min_offset
    for offset in range(-1, queue.max_offset + 2):
        entry = queue.entry(offset)
        assert entry is None or entry[1] > 0
    queue.delete_before(bound // 2)
    assert queue.min_offset <= queue.max_offset
    before = queue.max_offset
    cut = queue.cut_records_from(bound)
    assert queue.max_offset == before - cut >= 0
    queue.ensure_room(1)
    queue.make_room()
    queue.append_message(bound, 100, 7, 1, b"")
    assert queue.max_offset == before - cut + 1
    assert queue.entry(queue.max_offset - 1) == (bound, 100, 7)


def batch_entries(data: bytes) -> None:
    """Files of a batch queue."""
    bound, content = _bound(data)
    disk = _disk_with(DIRECTORY, content, BATCH_FILE_BYTES)
    queue = BatchConsumeQueue("T", 0, DIRECTORY, BATCH_FILE_BYTES, FilePool(disk))
    queue.load()
    for number in range(-1, QUEUE_FILES_MAX * 5 + 1):
        entry = queue.entry_at(number)
        if entry is not None:
            found = list(queue.entries_from(entry.base_offset, 3))
            assert len(found) <= 3
        queue.entry(number)
    queue.delete_before(bound // 2)
    queue.cut_records_from(bound)
    queue.ensure_room(1)
    entry_written = BatchEntry(bound, 100, 7, 1, queue.max_offset, 2)
    queue.append_batch_entry(entry_written)
    last = max(number for number in range(QUEUE_FILES_MAX * 5 + 2) if queue.entry_at(number) is not None)
    assert queue.entry_at(last) == entry_written


def key_index(data: bytes) -> None:
    """A file of the key index: searches end, and what is cut off leaves a file that takes entries."""
    bound, content = _bound(data)
    size = HEADER_BYTES + INDEX_SLOTS * 4 + INDEX_ENTRIES * INDEX_ENTRY_BYTES
    disk = SimulatedDisk(random.Random(1))
    disk.make_dirs("/store/index")
    mapped = disk.create_mapped("/store/index/20260101000000000", size)
    mapped.buffer[: len(content)] = content[:size]
    for is_trusted in (True, False):
        file = IndexFile(mapped, INDEX_SLOTS, INDEX_ENTRIES)
        for hash_value in (0, 1, 2, 0x7FFFFFFF):
            assert len(list(file.find(hash_value, *ALL_TIMES))) < INDEX_ENTRIES
        if file.cut(bound, is_trusted=is_trusted):
            for hash_value in range(INDEX_SLOTS):
                assert len(list(file.find(hash_value, *ALL_TIMES))) < INDEX_ENTRIES
            if not file.is_full:
                file.reserve(1)
                file.put(5, bound, 1)
                file.write_header()
                assert bound in list(file.find(5, *ALL_TIMES))


def checkpoints(data: bytes) -> None:
    """Both checkpoint files: what they say is the same once it is written again."""
    found = decode_checkpoint(data)
    assert decode_checkpoint(found.encode()) == found
    timer = decode_timer_checkpoint(data)
    if timer is not None:
        assert decode_timer_checkpoint(timer.encode()) == timer


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        frame,
        json_header,
        binary_header,
        record,
        queue_entries,
        extended_entries,
        batch_entries,
        key_index,
        checkpoints,
    )
}
