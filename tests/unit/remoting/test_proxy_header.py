"""PROXY protocol headers, whole and byte by byte, with what follows them; and bytes that are refused."""

from __future__ import annotations

import random
import struct

import pytest

from aerobee.errors import WireError
from aerobee.remoting.proxy_header import V2_BODY_BYTES_MAX, V2_SIGNATURE, ProxyHeaderReader, crc32c

V4 = bytes((203, 0, 113, 7, 10, 0, 0, 1)) + struct.pack(">HH", 51_324, 8_081)
V6 = bytes.fromhex("20010db8000000000000000000000007") + bytes(15) + b"\1" + struct.pack(">HH", 9, 10)


def v2(body: bytes, *, command: int = 0x21, family: int = 0x11, length: int | None = None) -> bytes:
    """A header of version 2."""
    size = len(body) if length is None else length
    return V2_SIGNATURE + bytes((command, family)) + struct.pack(">H", size) + body


def with_checksum(body: bytes) -> bytes:
    header = v2(body + bytes((3, 0, 4)) + bytes(4))
    return header[:-4] + crc32c(header).to_bytes(4, "big")


def two_checksums() -> bytes:
    """A header with two checksums, the first of which holds."""
    header = bytearray(v2(V4 + 2 * (bytes((3, 0, 4)) + bytes(4))))
    header[-11:-7] = crc32c(bytes(header)).to_bytes(4, "big")
    return bytes(header)


HEADERS = {
    "v1 IPv4": (b"PROXY TCP4 203.0.113.7 10.0.0.1 51324 8081\r\n", ("203.0.113.7", 51_324)),
    "v1 IPv6": (b"PROXY TCP6 2001:db8::7 ::1 9 10\r\n", ("2001:db8::7", 9)),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", None),
    "v1 unknown with more": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    "v2 IPv4": (v2(V4), ("203.0.113.7", 51_324)),
    "v2 IPv6": (v2(V6, family=0x21), ("2001:db8::7", 9)),
    "v2 with TLVs": (v2(V4 + bytes((1, 0, 2)) + b"h2" + bytes((4, 0, 0))), ("203.0.113.7", 51_324)),
    "v2 with its checksum": (with_checksum(V4), ("203.0.113.7", 51_324)),
    "v2 local": (v2(V4, command=0x20), None),
    "v2 UDP": (v2(V4, family=0x12), None),
    "v2 Unix": (v2(bytes(216), family=0x31), None),
    "v2 IPv4 inside IPv6": (
        v2(bytes(10) + b"\xff\xff" + bytes((203, 0, 113, 7)) + V6[16:], family=0x21),
        ("203.0.113.7", 9),
    ),
    "none": (b"", None),
}  # fmt: skip
BEHIND = (b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01", b"\0\0\0\x20", b"PROXY TCP4 ")


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("behind", BEHIND)
def test_a_header_is_taken_off_however_it_arrives(name: str, behind: bytes) -> None:
    header, source = HEADERS[name]
    if not header and behind.startswith(b"PROXY"):
        return  # not without a header
    whole = ProxyHeaderReader()
    assert whole.feed(header + behind) == behind
    assert whole.source == source
    slow, got = ProxyHeaderReader(), None
    data = header + behind
    for end in range(len(data)):
        got = slow.feed(data[end : end + 1])
        if got is not None:
            got += data[end + 1 :]
            break
        assert slow.has_begun
    assert got == behind
    assert (slow.source, slow.has_begun) == (source, False)


@pytest.mark.parametrize("name", [name for name, (header, _) in HEADERS.items() if header])
@pytest.mark.parametrize("second", [b"PROXY TCP4 127.0.0.1 10.0.0.1 1 1\r\n", v2(V4)])
def test_a_second_header_belongs_to_the_client(name: str, second: bytes) -> None:
    """Balancers send their header alone, before the client has sent anything: the client may send another one."""
    header, source = HEADERS[name]
    reader = ProxyHeaderReader()
    assert reader.feed(header) == b""
    assert reader.feed(second) == second
    assert reader.source == source


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 203.0.113.7 10.0.0.1 51324\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 51324 8081 9\r\n",
        b"PROXY UDP4 203.0.113.7 10.0.0.1 51324 8081\r\n",
        b"PROXY TCP4 ::1 10.0.0.1 51324 8081\r\n",
        b"PROXY TCP6 203.0.113.7 ::1 51324 8081\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 65536 8081\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 +1 8081\r\n",
        b"PROXY TCP4 203.0.113.07 10.0.0.1 1 8081\r\n",
        "PROXY TCP4 203.0.113.7 10.0.0.1 ١ 8081\r\n".encode(),
        b"PROXY TCP4 " + b"1" * 96,
        b"PROXY \r\n",
        v2(V4, command=0x11),
        v2(V4, command=0x22),
        v2(V4[:-1]),
        v2(V4, family=0x21),
        v2(b"", length=V2_BODY_BYTES_MAX + 1),
        v2(V4 + b"\1"),
        v2(V4 + bytes((1, 0, 9)) + b"h2"),
        with_checksum(V4)[:-1] + b"\0",
        v2(V4 + bytes((3, 0, 1, 0))),
    ],
)
def test_a_broken_header_ends_the_connection(data: bytes) -> None:
    with pytest.raises(WireError):
        ProxyHeaderReader().feed(data)


def test_a_header_has_one_checksum() -> None:
    """Each takes a pass over the whole header, and one header has space for hundreds."""
    with pytest.raises(WireError, match="two checksums"):
        ProxyHeaderReader().feed(two_checksums())


def test_random_bytes_raise_nothing_but_a_wire_error() -> None:
    rng = random.Random(28)
    headers = [header for header, _ in HEADERS.values() if header]
    for _ in range(3_000):
        data = bytearray(rng.choice(headers) + rng.randbytes(8))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        reader = ProxyHeaderReader()
        try:
            while data and reader.feed(bytes(data[:7])) is None:
                del data[:7]
        except WireError:
            continue
        assert reader.source is None or (0 <= reader.source[1] <= 65_535 and reader.source[0])
