import struct

from aerobee.store.files.checkpoint import Checkpoint, decode_checkpoint


def test_rocketmqs_fields_are_read_and_nothing_else_is_believed() -> None:
    data = struct.pack(">6q", 1, 2, 3, 4, 5, 6) + bytes(4096 - 48)
    checkpoint = decode_checkpoint(data)
    assert checkpoint.queues_physical_offset == 6
    assert not checkpoint.has_bounds


def test_bounds_come_back() -> None:
    checkpoint = Checkpoint(log_timestamp=7, queues_timestamp=8, log_flushed=900, queues_flushed=800)
    data = checkpoint.encode()
    assert len(data) == 4096
    assert decode_checkpoint(data) == checkpoint


def test_bounds_are_forgotten_when_rocketmq_has_written_since() -> None:
    data = bytearray(Checkpoint(log_timestamp=7, log_flushed=900, queues_flushed=800).encode())
    struct.pack_into(">q", data, 0, 9)
    assert not decode_checkpoint(bytes(data)).has_bounds


def test_damaged_bounds_and_short_files_are_not_believed() -> None:
    data = bytearray(Checkpoint(log_timestamp=7, log_flushed=900, queues_flushed=800).encode())
    data[75] ^= 1
    assert not decode_checkpoint(bytes(data)).has_bounds
    assert decode_checkpoint(b"") == Checkpoint()
