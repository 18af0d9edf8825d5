"""The HA streams of both modes against what RocketMQ 5.5.0 sent, and bytes that must be refused."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.errors import FrameTooLarge, MalformedFrame, WireError
from aerobee.ha.stream.epoch_file import EpochEntry
from aerobee.ha.stream.handshake import Handshake, HandshakeReply, MasterStream, SlaveStream
from aerobee.ha.stream.transfer_header import (
    LARGE_BYTES,
    ClassicFrame,
    ClassicFrames,
    HaState,
    Reports,
    StateReport,
    TransferFrame,
    encode_report,
)

DATA = Path(__file__).resolve().parents[3] / "data" / "ha"
Key = tuple[str, int, str]


def streams(name: str) -> dict[Key, list[bytes]]:
    """The reads of each direction of each connection."""
    reads: dict[Key, list[bytes]] = defaultdict(list)
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if "hex" in row:
                reads[row["tap"], row["conn"], row["direction"]].append(bytes.fromhex(row["hex"]))
    return reads


CLASSIC = streams("ha-default-stream")
SWITCHED = streams("ha-autoswitch-stream")


def cut(stream: ClassicFrames | SlaveStream | MasterStream, reads: list[bytes]) -> list[object]:
    frames: list[object] = []
    for data in reads:
        stream.feed(data)
        while (frame := stream.next_frame()) is not None:
            frames.append(frame)
    return frames


def one_by_one(reads: list[bytes]) -> list[bytes]:
    return [bytes((byte,)) for byte in b"".join(reads)]


# -- classic


def test_a_captured_classic_slave_reports_its_log_end() -> None:
    reads = CLASSIC["ha", 1, "request"]
    offsets = [Reports().feed(data) for data in reads]
    assert offsets[:4] == [0, 2211, 2457, 3849]
    assert b"".join(encode_report(offset) for offset in offsets if offset is not None) == b"".join(reads)
    reports = Reports()
    slowly = [reports.feed(data) for data in one_by_one(reads)]
    assert [offset for offset in slowly if offset is not None] == offsets
    assert Reports().feed(b"".join(reads)) == offsets[-1], "only the newest of a read counts"


@pytest.mark.parametrize("connection", [1, 2])
def test_a_captured_classic_master_is_read_and_written_byte_for_byte(connection: int) -> None:
    reads = CLASSIC["ha", connection, "response"]
    frames = cut(ClassicFrames(), reads)
    assert frames == cut(ClassicFrames(), one_by_one(reads)) == cut(ClassicFrames(), [b"".join(reads)])
    written = [frame for frame in frames if isinstance(frame, ClassicFrame)]
    assert b"".join(frame.encode() for frame in written) == b"".join(reads)
    for before, after in pairwise(written):
        assert after.offset == before.offset + len(before.body)
    if connection == 1:
        assert [(frame.offset, len(frame.body)) for frame in written[:4]] == [
            (0, 2211),
            (2211, 246),
            (2457, 1392),
            (3849, 0),
        ]
    else:
        assert (written[0].offset, len(written[0].body)) == (3849, 573)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\xff" * 8 + bytes(4), MalformedFrame),
        (bytes(8) + b"\xff" * 4, MalformedFrame),
        (bytes(8) + b"\x7f\xff\xff\xff", FrameTooLarge),
    ],
)
def test_a_classic_head_that_cannot_be_is_refused_before_its_body(
    data: bytes, error: type[WireError]
) -> None:
    frames = ClassicFrames()
    frames.feed(data)
    with pytest.raises(error):
        frames.next_frame()


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(MalformedFrame, match="a slave's offset is -1"):
        Reports().feed(b"\xff" * 8)


# -- controller mode


@pytest.mark.parametrize("key", [key for key in SWITCHED if key[2] == "request"], ids=str)
def test_a_captured_slave_of_controller_mode(key: Key) -> None:
    reads = SWITCHED[key]
    frames = cut(SlaveStream(), reads)
    assert frames == cut(SlaveStream(), one_by_one(reads))
    assert b"".join(frame.encode() for frame in frames) == b"".join(reads)  # type: ignore[attr-defined]
    handshakes = [frame for frame in frames if isinstance(frame, Handshake)]
    if key[0] == "ha-of-a":
        assert handshakes == [Handshake(broker_id=2)]
        assert frames[1:3] == [StateReport(0), StateReport(1638)]
    else:
        assert handshakes == [Handshake(broker_id=1)] * len(handshakes)
        assert handshakes


@pytest.mark.parametrize("key", [key for key in SWITCHED if key[2] == "response"], ids=str)
def test_a_captured_master_of_controller_mode(key: Key) -> None:
    reads = SWITCHED[key]
    frames = cut(MasterStream(), reads)
    assert frames == cut(MasterStream(), one_by_one(reads)) == cut(MasterStream(), [b"".join(reads)])
    assert b"".join(frame.encode() for frame in frames) == b"".join(reads)  # type: ignore[attr-defined]
    first, second = frames[:2]
    if key[0] == "ha-of-a":
        assert first == HandshakeReply(max_offset=1638, entries=(EpochEntry(1, 0),))
        assert second == TransferFrame(offset=0, epoch=1, epoch_start_offset=0, confirm_offset=1638, body=b"")
    else:
        assert first == HandshakeReply(max_offset=4914, entries=(EpochEntry(1, 0), EpochEntry(2, 3276)))
    transfers = [frame for frame in frames if isinstance(frame, TransferFrame)]
    for before, after in pairwise(transfers):
        assert after.offset == before.offset + len(before.body)
        assert after.confirm_offset >= before.confirm_offset
    assert sum(len(frame.body) for frame in transfers) == 3276


def test_the_captures_hold_both_connections() -> None:
    assert {key[0] for key in SWITCHED} == {"ha-of-a", "ha-of-b"}
    assert len(CLASSIC) == 4


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        ("00000009", MalformedFrame, "the state of an HA frame is 9"),
        ("ffffffff", MalformedFrame, "the state of an HA frame is -1"),
        ("000000010000000d000000000000000000000001", MalformedFrame, "13 bytes of epochs"),
        ("0000000100002ee1000000000000000000000001", FrameTooLarge, "12001 bytes, 12000"),
        ("0000000100000000ffffffffffffffff00000001", MalformedFrame, "the end of the master's log"),
        ("000000010000000c00000000000000010000000200000001" + "00" * 8, MalformedFrame, "last epoch is 1"),
        (
            "0000000100000018000000000000000100000001" + ("00000001" + "00" * 8) * 2,
            MalformedFrame,
            "epoch 1 from 0 follows epoch 1 from 0",
        ),
        ("00000002ffffffff" + "00" * 28, MalformedFrame, "the size of an HA frame is -1"),
        ("000000027fffffff" + "00" * 28, FrameTooLarge, "announces 2147483647 bytes"),
        ("00000002000000008000000000000000" + "00" * 20, MalformedFrame, "the offset of an HA frame"),
    ],
)
def test_a_master_that_cannot_be_is_refused(data: str, error: type[WireError], reason: str) -> None:
    stream = MasterStream()
    stream.feed(bytes.fromhex(data))
    with pytest.raises(error, match=reason):
        stream.next_frame()


@pytest.mark.parametrize(
    "data", ["0000000100020000" + "00" * 8, "0000000100000000" + "ff" * 8, "00000002" + "ff" * 8, "00000005"]
)
def test_a_slave_that_cannot_be_is_refused(data: str) -> None:
    stream = SlaveStream()
    stream.feed(bytes.fromhex(data))
    with pytest.raises(MalformedFrame):
        stream.next_frame()


@given(st.binary(max_size=200), st.sampled_from((ClassicFrames, SlaveStream, MasterStream)))
def test_any_bytes_are_frames_that_encode_to_themselves_or_are_refused(
    data: bytes, kind: type[ClassicFrames | SlaveStream | MasterStream]
) -> None:
    stream = kind()
    stream.feed(data)
    used = 0
    try:
        while (frame := stream.next_frame()) is not None:
            encoded = frame.encode()
            if not isinstance(frame, HandshakeReply) or frame.entries:
                assert encoded == data[used : used + len(encoded)]
            used += len(encoded)
    except WireError:
        return


@given(
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 30),
    st.integers(-1, 1 << 40),
    st.binary(max_size=100),
    st.sampled_from([HaState.TRANSFER, HaState.READY]),
    st.lists(st.integers(1, 50), max_size=20),
)
def test_frames_cut_anywhere_arrive_whole(
    offset: int, epoch: int, confirm: int, body: bytes, state: HaState, cuts: list[int]
) -> None:
    frame = TransferFrame(
        offset=offset,
        epoch=epoch,
        epoch_start_offset=offset // 2,
        confirm_offset=confirm,
        body=body,
        state=state,
    )
    data = frame.encode() * 2
    reads, at = [], 0
    for size in cuts:
        reads.append(data[at : at + size])
        at += size
    assert cut(MasterStream(), [*reads, data[at:]]) == [frame, frame]


LARGE_BODY = bytes(range(256)) * (LARGE_BYTES // 256) + b"end"


@pytest.mark.parametrize("step", [1, 7, 11, 12, 13, 44, 45, 1 << 16, LARGE_BYTES, 1 << 20])
@pytest.mark.parametrize("kind", [ClassicFrames, MasterStream])
def test_a_large_frame_is_returned_in_pieces(kind: type[ClassicFrames | MasterStream], step: int) -> None:
    def frame(offset: int, body: bytes) -> ClassicFrame | TransferFrame:
        if kind is ClassicFrames:
            return ClassicFrame(offset, body)
        return TransferFrame(offset=offset, epoch=3, epoch_start_offset=1, confirm_offset=9, body=body)

    behind = 5 + len(LARGE_BODY)
    data = frame(5, LARGE_BODY).encode() + frame(behind, b"small").encode()
    head = len(data) - len(LARGE_BODY) - len(frame(0, b"small").encode())
    reads, at = [], 0  # with a step of 1, one byte at a time around the head and the end only
    while at < len(data):
        size = step if step > 1 or at < head + 3 or at >= len(data) - 60 else len(data) - 60 - at
        reads.append(data[at : at + size])
        at += size
    stream, got = kind(), bytearray()
    for read in reads:
        stream.feed(read)
        while (piece := stream.next_frame()) is not None:
            assert not isinstance(piece, HandshakeReply)
            assert piece.offset == 5 + len(got)
            got += piece.body
            if isinstance(piece, TransferFrame):
                assert (piece.epoch, piece.epoch_start_offset, piece.confirm_offset) == (3, 1, 9)
    assert got == LARGE_BODY + b"small"


@pytest.mark.parametrize("kind", [ClassicFrames, MasterStream])
def test_the_rest_of_a_large_frame_may_be_read_past_it(kind: type[ClassicFrames | MasterStream]) -> None:
    head: ClassicFrame | TransferFrame = ClassicFrame(5, LARGE_BODY)
    if kind is MasterStream:
        head = TransferFrame(offset=5, epoch=3, epoch_start_offset=1, confirm_offset=9, body=LARGE_BODY)
    data, stream = head.encode(), kind()
    begin = len(data) - len(LARGE_BODY)
    stream.feed(data[:begin])
    assert stream.next_frame() is None
    assert (stream.large.left, stream.large.is_begun) == (len(LARGE_BODY), False)
    stream.feed(data[begin : begin + 10])
    piece = stream.next_frame()
    assert isinstance(piece, ClassicFrame | TransferFrame)
    assert (piece.offset, piece.body) == (5, LARGE_BODY[:10])
    assert stream.next_frame() is None
    assert (stream.large.offset, stream.large.left, stream.large.is_begun) == (15, len(LARGE_BODY) - 10, True)
    stream.large.passed(len(LARGE_BODY) - 13)
    stream.feed(data[-3:] + data)
    last, again = stream.next_frame(), stream.next_frame()
    assert isinstance(last, ClassicFrame | TransferFrame)
    assert (last.offset, last.body) == (5 + len(LARGE_BODY) - 3, b"end")
    assert isinstance(again, ClassicFrame | TransferFrame)
    assert (again.offset, again.body) == (5, LARGE_BODY)
