"""Headers: what an unknown peer can make a server parse. Lengths, the dialect of JSON, fields, keys in keys."""

from __future__ import annotations

import struct

import pytest

from aerobee.errors import FrameTooLarge, MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.binary_header import decode_binary_header
from aerobee.remoting.frame import HEADER_BYTES_MAX, FrameDecoder
from aerobee.remoting.json_header import DIALECT_BYTES_MAX, FIELDS_MAX, decode_json_header


def prefix(header_bytes: int, body_bytes: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + header_bytes + body_bytes, kind << 24 | header_bytes)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_long_header_is_refused_before_it_has_come(kind: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(prefix(HEADER_BYTES_MAX, kind=kind))
    assert decoder.next_frame() is None
    decoder = FrameDecoder()
    decoder.feed(prefix(HEADER_BYTES_MAX + 1, kind=kind))
    with pytest.raises(FrameTooLarge, match=f"a header announces {HEADER_BYTES_MAX + 1} bytes"):
        decoder.next_frame()


def test_a_long_header_that_has_come_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.remoting.frame.decode_json_header", lambda *_: pytest.fail("parsed"))
    decoder = FrameDecoder()
    decoder.feed(prefix(HEADER_BYTES_MAX + 1) + b" " * (HEADER_BYTES_MAX + 1))
    with pytest.raises(FrameTooLarge):
        decoder.next_frame()


def test_a_header_in_the_dialect_has_a_smaller_bound() -> None:
    def header(size: int) -> bytes:
        text = b'{code:10,"flag":0,"opaque":1,"version":1,"extFields":{"a":"'
        return text + b"x" * (size - len(text) - 3) + b'"}}'

    assert decode_json_header(header(DIALECT_BYTES_MAX), b"").code == 10
    with pytest.raises(MalformedFrame, match="not standard JSON"):
        decode_json_header(header(DIALECT_BYTES_MAX + 1), b"")


@pytest.mark.parametrize("value", [b"\xff", b"\x01", b"\xed\xa0\x80"])
def test_text_that_is_not_standard_is_read_up_to_the_bound_of_headers(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++ and Go send properties that are not UTF-8 or hold control characters: up to 32 KiB of them."""
    slow: list[str] = []
    init = fastjson._Reader.__init__
    monkeypatch.setattr(
        fastjson._Reader, "__init__", lambda self, text: (slow.append(text), init(self, text))[1]
    )
    text = b'{"code":10,"flag":0,"opaque":1,"version":1,"extFields":{"i":"' + value + b"x" * 100_000 + b'"}}'
    found = (decode_json_header(text, b"").ext or {})["i"]
    assert found == value.decode("utf-8", "replace") + "x" * 100_000
    assert slow == []


def test_mended_text_reads_as_the_dialect_does() -> None:
    for text in (b'{"a":"\x01\xff\x1f"}', b'{"a\x02":"\xed\xa0\x80"}', b'{"a":[1,\t"\x00"]}\n'):
        assert fastjson.loads(text) == fastjson.loads(fastjson.mend_text(text).encode())


@pytest.mark.parametrize("kind", ["json", "binary"])
def test_a_header_with_too_many_fields_is_refused(kind: str) -> None:
    def decode(count: int) -> int:
        names = [str(number).encode() for number in range(count)]
        if kind == "json":
            fields = b",".join(b'"%b":"x"' % name for name in names)
            text = b'{"code":1,"flag":0,"opaque":1,"version":1,"extFields":{' + fields + b"}}"
            return len(decode_json_header(text, b"").ext or ())
        fields = b"".join(struct.pack(">h", len(name)) + name + b"\0\0\0\1x" for name in names)
        text = struct.pack(">hBhiiii", 1, 0, 1, 1, 0, 0, len(fields)) + fields
        return len(decode_binary_header(text, b"").ext or ())

    assert decode(FIELDS_MAX) == FIELDS_MAX
    with pytest.raises(MalformedFrame, match=f"{FIELDS_MAX}"):
        decode(FIELDS_MAX + 1)


def test_objects_as_keys_do_not_nest() -> None:
    """Each level would be escaped in the next one: 90 bytes would become a gibibyte."""
    text = '{"a":1}'
    assert fastjson.loads(f"{{{text}:1}}".encode()) == {text: 1}
    with pytest.raises(MalformedFrame, match="a key inside a key"):
        fastjson.loads(f"{{{{{text}:1}}:1}}".encode())
    assert fastjson.loads(b'{"x":{{"a":1}:1},"y":{{"b":2}:2}}') == {"x": {'{"a":1}': 1}, "y": {'{"b":2}': 2}}


def test_a_negative_length_is_reported_as_it_is() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"\xff\xff\xff\xff")
    with pytest.raises(FrameTooLarge, match="announces a length of -1 bytes"):
        decoder.next_frame()
