"""Frames and headers against captured bytes, both ways, and against bytes that must be refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.errors import FrameTooLarge, MalformedFrame, UsageError, WireError
from aerobee.remoting.codes import LanguageCode
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import FRAME_BYTES_MAX, FrameDecoder, decode_frame, encode_frame
from tests.captures import capture_names, captured
from tests.rounds import rounds

JSON_105 = (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
BINARY_105 = bytes.fromhex(
    "0000002501000021006900 01df 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54".replace(
        " ", ""
    )
)


def as_texts(ext: dict | None) -> dict[str, str] | None:
    """What a header's fields are once every scalar is text."""
    if ext is None:
        return None
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in ext.items()}


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


@pytest.mark.parametrize("name", capture_names())
def test_captured_frames_mean_what_their_headers_say(name: str) -> None:
    for frame in captured(name):
        command = decode_frame(frame.data)
        header = frame.header
        assert command.code == header["code"]
        assert command.opaque == header["opaque"]
        assert command.flag == header["flag"]
        assert command.version == header["version"]
        assert command.language == LanguageCode[header["language"]]
        assert command.remark == header.get("remark")
        assert command.ext == as_texts(header.get("extFields"))
        assert (command.is_response, command.is_oneway) == (frame.is_reply, frame.is_oneway)
        assert command.body == frame.data[len(frame.data) - len(command.body) :]


@pytest.mark.parametrize("name", capture_names())
def test_captured_frames_encode_again_byte_for_byte(name: str) -> None:
    for frame in captured(name):
        command = decode_frame(frame.data)
        again = encode_frame(command)
        if frame.header["language"] == "CPP":  # leaves serializeTypeCurrentRPC out and writes numbers
            assert decode_frame(again) == command
        else:
            assert again == frame.data


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_stream_in_pieces_gives_the_same_frames(step: int) -> None:
    frames = [frame.data for frame in captured("java-binary-send")[:60]]
    stream = b"".join(frames)
    decoder = FrameDecoder()
    found = []
    for at in range(0, len(stream), step):
        decoder.feed(stream[at : at + step])
        while (command := decoder.next_frame()) is not None:
            found.append(encode_frame(command))
    assert found == frames
    assert decoder.unused == 0


def test_a_frame_is_found_with_the_next_one_behind_it() -> None:
    first, second = (frame.data for frame in captured("cpp-producer")[:2])
    decoder = FrameDecoder()
    decoder.feed(first + second[:9])
    assert decoder.next_frame() == decode_frame(first)
    assert decoder.next_frame() is None
    decoder.feed(second[9:])
    assert decoder.next_frame() == decode_frame(second)


def test_known_vectors_of_both_header_types() -> None:
    expected = RemotingCommand(
        105,
        {"topic": "T"},
        opaque=7,
        version=479,
        language=LanguageCode.JAVA,
        serialize_type=SerializeType.JSON,
    )
    frame = bytes.fromhex("0000007f0000007b") + JSON_105
    assert decode_frame(frame) == expected
    assert encode_frame(expected) == frame
    expected.serialize_type = SerializeType.ROCKETMQ
    assert decode_frame(BINARY_105) == expected
    assert encode_frame(expected) == BINARY_105


def test_absent_and_empty_fields_stay_apart_in_json() -> None:
    assert decode_frame(json_frame(b'{"code":1}')).ext is None
    assert decode_frame(json_frame(b'{"code":1,"extFields":{}}')).ext == {}
    assert b"extFields" not in encode_frame(RemotingCommand(1))
    assert b'"extFields":{}' in encode_frame(RemotingCommand(1, {}))


@pytest.mark.parametrize("value", ["\x00\x1f", "ä中😀", '"\\/', "\u2028", ""])
def test_text_of_any_kind_survives(value: str) -> None:
    command = RemotingCommand(10, {"k": value, value or "x": "v"}, b"\x00body", remark=value)
    assert decode_frame(encode_frame(command)) == command


def test_scalars_of_other_types_become_text_and_null_is_absent() -> None:
    header = b'{"code":"10","extFields":{"a":1,"b":true,"c":false,"d":null,"e":1.5,"f":-7},"opaque":3}'
    command = decode_frame(json_frame(header))
    assert command.code == 10
    assert command.ext == {"a": "1", "b": "true", "c": "false", "e": "1.5", "f": "-7"}


@pytest.mark.parametrize("language", [b'"KLINGON"', b"99", b"null", b"[]", b"-1", b"{}"])
def test_an_unknown_language_is_other(language: bytes) -> None:
    assert decode_frame(json_frame(b'{"code":1,"language":%s}' % language)).language == LanguageCode.OTHER


def test_what_is_not_quite_json_is_tolerated() -> None:
    header = b'{"code":1,"extFields":{"k":"a\x01\xff\\ud800","n":"\n"},0:1}'
    assert decode_frame(json_frame(header)).ext == {"k": "a\x01\ufffd\ufffd", "n": "\n"}


def test_a_remark_with_lone_surrogates_can_be_sent() -> None:
    assert decode_frame(encode_frame(RemotingCommand(1, remark="file \udcff"))).remark == "file ?"


@pytest.mark.parametrize(
    "frame",
    [
        json_frame(b""),
        json_frame(b"[]"),
        json_frame(b"null"),
        json_frame(b'{"code":1'),
        json_frame(b'{"code":2147483648}'),
        json_frame(b'{"code":1.5}'),
        json_frame(b'{"code":null}'),
        json_frame(b'{"code":1,"opaque":"x"}'),
        json_frame(b'{"code":1,"extFields":[]}'),
        json_frame(b'{"code":1,"extFields":"x"}'),
        json_frame(b"[" * 100_000),
        json_frame(b'{"a":' * 5000),
        struct.pack(">II", 4, 1),  # a header longer than its frame
        struct.pack(">II", 8, 0x02000004) + b"abcd",  # an unknown serialize type
        struct.pack(">I", 3) + b"abc",  # no space for the second word
        struct.pack(">II", 4 + 20, 0x01000014) + bytes(20),  # a binary header that is too short
        BINARY_105[:-13] + struct.pack(">h", -5) + BINARY_105[-11:],
        BINARY_105[:-5] + struct.pack(">i", 0x7FFFFFFF) + b"T",
        BINARY_105[:-5] + struct.pack(">i", -1) + b"T",
    ],
)
def test_broken_frames_are_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_frame(frame)


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX - 3, FRAME_BYTES_MAX, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_frame_too_large_is_refused_before_its_bytes_arrive(length: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">I", length))
    with pytest.raises(FrameTooLarge):
        decoder.next_frame()


def test_the_largest_frame_is_accepted() -> None:
    body = bytes(FRAME_BYTES_MAX - 4 - 4 - len(b'{"code":1}'))
    frame = json_frame(b'{"code":1}', body)
    assert len(frame) == FRAME_BYTES_MAX
    assert decode_frame(frame).body == body
    with pytest.raises(FrameTooLarge):
        encode_frame(RemotingCommand(1, body=body + body))


def test_a_binary_header_has_no_room_for_the_codes_of_pop() -> None:
    with pytest.raises(UsageError, match="POP_MESSAGE"):
        encode_frame(RemotingCommand(200_050, serialize_type=SerializeType.ROCKETMQ))


def test_a_binary_header_writes_no_empty_values() -> None:
    command = RemotingCommand(
        10, {"a": "", "": "x", "b": "1"}, remark="", serialize_type=SerializeType.ROCKETMQ
    )
    again = decode_frame(encode_frame(command))
    assert again.ext == {"b": "1"}
    assert again.remark is None


def test_typed_reads_of_fields() -> None:
    command = RemotingCommand(
        310, {"i": "-42", "t": "true", "one": "1", "f": "false", "big": "9" * 19, "e": ""}
    )
    assert command.integer("i") == -42
    assert (command.boolean("t"), command.boolean("one"), command.boolean("f")) == (True, True, False)
    assert command.integer("absent", 7) == 7
    assert command.integer("e", 8) == 8
    assert command.text("e") == ""
    for name in ("big", "t", "absent", "e"):
        with pytest.raises(MalformedFrame, match=f"<{name}> of SEND_MESSAGE_V2"):
            command.integer(name)
    for text in ("1_0", " 1", "--1", "-", "٣", "1" * 5000):
        with pytest.raises(MalformedFrame):
            RemotingCommand(1, {"i": text}).integer("i")
    with pytest.raises(MalformedFrame, match="missing"):
        command.text("absent")


def test_a_reply_repeats_opaque_and_header_type() -> None:
    request = RemotingCommand(10, {"a": "1"}, b"x", opaque=9, serialize_type=SerializeType.ROCKETMQ)
    reply = request.reply(17, remark="no", ext={})
    assert (reply.code, reply.opaque, reply.is_response, reply.serialize_type) == (17, 9, True, 1)
    assert (reply.version, reply.language) == (513, LanguageCode.PYTHON)


@settings(max_examples=rounds(300), deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_random_bytes_only_raise_wire_errors(data: bytes, step: int) -> None:
    decoder = FrameDecoder()
    fed = 0
    try:
        for at in range(0, len(data), step):
            decoder.feed(data[at : at + step])
            fed += len(data[at : at + step])
            while (command := decoder.next_frame()) is not None:
                assert isinstance(command, RemotingCommand)
    except WireError:
        pass
    else:
        assert 0 <= decoder.unused <= fed == len(data)


FRAMES = [frame.data for name in ("cpp-producer", "java-binary-send") for frame in captured(name)[:40]]


@settings(max_examples=rounds(600), deadline=None)
@given(
    st.sampled_from(FRAMES),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_mutated_frames_only_raise_wire_errors(frame: bytes, changes: list[tuple[int, int]]) -> None:
    mutated = bytearray(frame)
    for at, value in changes:
        mutated[at % len(mutated)] = value
    try:
        again = encode_frame(decode_frame(bytes(mutated)))
    except (WireError, UsageError):
        pass
    else:
        assert int.from_bytes(again[:4], "big") == len(again) - 4


@settings(max_examples=rounds(200), deadline=None)
@given(
    st.builds(
        RemotingCommand,
        code=st.integers(-0x8000, 0x7FFF),
        ext=st.none()
        | st.dictionaries(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=50), min_size=1),
        body=st.binary(max_size=100),
        remark=st.none() | st.text(min_size=1, max_size=50),
        opaque=st.integers(-(1 << 31), (1 << 31) - 1),
        flag=st.integers(0, 3),
        version=st.integers(0, 0x7FFF),
        language=st.sampled_from([code.value for code in LanguageCode]),
        serialize_type=st.sampled_from([0, 1]),
    )
)
def test_any_command_survives_both_header_types(command: RemotingCommand) -> None:
    assert decode_frame(encode_frame(command)) == command


@pytest.mark.parametrize("depth", [65, 300, 900])
def test_a_header_field_nested_too_deep_is_malformed(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    for header in (
        b'{"extFields":{"a":%s}}' % nested,
        b'{"remark":%s}' % nested,
        b"{extFields:{a:%s}}" % nested,
    ):
        with pytest.raises(MalformedFrame, match="nested deeper than 64"):
            decode_frame(json_frame(header))


def test_a_version_in_a_binary_header_is_the_lower_16_bits_as_in_java() -> None:
    for version, read in ((513, 513), (-767, -767), (0x18001, -0x7FFF)):
        frame = encode_frame(
            RemotingCommand(10, version=version, serialize_type=SerializeType.ROCKETMQ.value)
        )
        assert decode_frame(frame).version == read
