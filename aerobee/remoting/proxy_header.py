"""The PROXY protocol, by which a balancer says whose connection it passes on: versions 1 and 2. Core.

    v1   PROXY TCP4 203.0.113.7 10.0.0.1 51324 8081\\r\\n        at most 107 bytes; TCP6, UNKNOWN
    v2   12 bytes of signature | uint8 version and command | uint8 family | uint16 length | addresses | TLVs

A connection without a header is served as it is. Bytes that begin as a header and are none end the connection. Source:
haproxy's proxy-protocol.txt, 2.1 and 2.2.
"""

from __future__ import annotations

import ipaddress
import struct

from aerobee.errors import WireError
from aerobee.host_port import PORT_MAX

V1_PREFIX, V1_BYTES_MAX = b"PROXY ", 107
V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V2_BODY_BYTES_MAX = 4_096  # addresses take 36 bytes; some balancers append a few hundred bytes of TLVs
_V2_HEAD = struct.Struct(">12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_FAMILIES = {0x11: struct.Struct(">4s4sHH"), 0x21: struct.Struct(">16s16sHH")}  # TCP over IPv4, over IPv6
_CRC32C_TYPE = 0x03
_TLV_HEAD = struct.Struct(">BH")

Source = tuple[str, int]


class ProxyHeaderReader:
    """Takes the header off the first bytes of a connection. `source`: the client that it names, None without one.

    A connection has one header: what follows it comes from the client, which may write what it likes. Keeps at most one header, of
    which V2_BODY_BYTES_MAX bounds the size. After a WireError it is not used again.
    """

    __slots__ = ("_is_done", "_kept", "source")

    def __init__(self) -> None:
        self._kept = b""
        self._is_done = False
        self.source: Source | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the beginning of a header waits for its rest."""
        return bool(self._kept)

    def feed(self, data: bytes) -> bytes | None:
        """Return the bytes behind the header, all bytes where there is none; None while more are needed. Raises WireError."""
        if self._is_done:
            return data
        data = self._kept + data
        if data.startswith(V2_SIGNATURE):
            end = self._read_v2(data)
        elif data.startswith(V1_PREFIX):
            end = self._read_v1(data)
        else:
            may_be = any(text.startswith(data) for text in (V1_PREFIX, V2_SIGNATURE))
            end = None if may_be else 0
        if end is None:
            self._kept = data
            return None
        self._kept, self._is_done = b"", True
        return data[end:]

    def _read_v1(self, data: bytes) -> int | None:
        end = data.find(b"\r\n", 0, V1_BYTES_MAX)
        if end < 0:
            if len(data) >= V1_BYTES_MAX:
                raise WireError(f"a PROXY header has no end within {V1_BYTES_MAX} bytes")
            return None
        words = data[:end].decode("latin-1").split(" ")
        if words[1] == "UNKNOWN":
            return end + 2
        if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
            raise WireError(f"{data[:end]!r} is no PROXY header of version 1")
        source, _ = (_address(text, words[1]) for text in words[2:4])
        port, _ = (_port(text) for text in words[4:6])
        self.source = (source, port)
        return end + 2

    def _read_v2(self, data: bytes) -> int | None:
        if len(data) < _V2_HEAD.size:
            return None
        _, command, family, length = _V2_HEAD.unpack_from(data)
        if command not in (_LOCAL, _PROXY):
            raise WireError(
                f"a PROXY header has version and command 0x{command:02x}, 0x20 and 0x21 are known"
            )
        if length > V2_BODY_BYTES_MAX:
            raise WireError(f"a PROXY header announces {length} bytes, at most {V2_BODY_BYTES_MAX} are taken")
        end: int = _V2_HEAD.size + length
        if len(data) < end:
            return None
        layout = _FAMILIES.get(family)
        if (
            command == _LOCAL or layout is None
        ):  # a health check of the balancer; UDP or a Unix socket, which has no address
            return end
        if length < layout.size:
            raise WireError(
                f"a PROXY header has {length} bytes of addresses, family 0x{family:02x} needs {layout.size}"
            )
        _check_tlvs(data[:end], _V2_HEAD.size + layout.size)
        packed, _, port, _ = layout.unpack_from(data, _V2_HEAD.size)
        self.source = (_plain(ipaddress.ip_address(packed)), port)
        return end


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    return str(getattr(address, "ipv4_mapped", None) or address)


def _address(text: str, family: str) -> str:
    try:
        found = ipaddress.IPv4Address(text) if family == "TCP4" else ipaddress.IPv6Address(text)
    except ValueError:
        raise WireError(f"a PROXY header has the address {text[:64]!r}, which is not of {family}") from None
    return _plain(found)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= PORT_MAX):
        raise WireError(f"a PROXY header has the port {text[:16]!r}")
    return int(text)


def _check_tlvs(header: bytes, position: int) -> None:
    """Raise WireError where the TLVs do not fill the header, or their checksum is not that of the header, or there are two."""
    is_checked = False
    while position < len(header):
        if position + _TLV_HEAD.size > len(header):
            raise WireError("a PROXY header ends in the middle of a TLV")
        kind, length = _TLV_HEAD.unpack_from(header, position)
        begin, position = position + _TLV_HEAD.size, position + _TLV_HEAD.size + length
        if position > len(header):
            raise WireError("a PROXY header ends in the middle of a TLV")
        if kind == _CRC32C_TYPE:
            if is_checked:  # each costs some milliseconds
                raise WireError("a PROXY header has two checksums")
            is_checked = True
            blanked = header[:begin] + bytes(length) + header[position:]
            if length != 4 or crc32c(blanked) != int.from_bytes(header[begin:position], "big"):
                raise WireError("the checksum of a PROXY header is not that of its bytes")


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC (RFC 3720), bit by bit: a header has some hundred bytes, once a connection."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
