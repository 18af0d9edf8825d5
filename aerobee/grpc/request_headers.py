"""The headers of one request: whether HTTP/2 allows them, and as mappings. Core.

An error in them ends the call and not the connection (RFC 9113, 8.1.1).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import NamedTuple

ENTRY_BYTES = 32  # that a field counts besides its texts (RFC 7541, 4.1)
PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
REQUIRED = (":method", ":scheme", ":path")
# Headers of HTTP/1: they have no meaning in HTTP/2, but intermediaries may act on them (RFC 9113, 8.2.2).
FORBIDDEN = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
# Headers that only the transport reads: a pending call need not store them.
OF_TRANSPORT = frozenset(
    {
        b"content-type", b"te", b"user-agent", b"accept-encoding", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding",
    }
)  # fmt: skip
_COLON = 0x3A
# A name and a value: RFC 9113, 8.2.1. Spaces around a value are stripped in place of refused, as gRPC's specification has it:
# its C core sends them.
_NAME = re.compile(rb":?[!-9;-@\[-~]+")
_NO_VALUE = re.compile(rb"[\0\r\n]")
_SPACES = " \t"
_NAMES_MAX, _NAME_BYTES_MAX = 256, 64  # remembered
_names: dict[bytes, tuple[str, int]] = {}  # a header's name -> as text, kind

# What a header field is. Those from LENGTH on say something about the whole connection.
KEPT, TRANSPORT, PSEUDO_HEADER, HOST, MALFORMED, LENGTH, STATUS = range(7)


class HeaderField(NamedTuple):
    """One header. `size` as HPACK counts it, `text` is the value without spaces around it."""

    name: bytes
    value: bytes
    size: int
    kind: int
    key: str
    text: str


class RequestHeaders(NamedTuple):
    """The last value of each header: those that the transport reads, and those that a call keeps."""

    transport: dict[str, str]
    metadata: dict[str, str]


def make_field(name: bytes, value: bytes) -> HeaderField:
    """The field, which may be one that no request may have. Calls share the names, because thousands of calls may be pending."""
    known = _names.get(name)
    if known is None:
        known = sys.intern(str(name, "latin-1")), _kind_of(name)
        if len(name) <= _NAME_BYTES_MAX:
            if len(_names) >= _NAMES_MAX:
                _names.clear()  # also of the names that a hostile peer had remembered
            _names[name] = known
    key, kind = known
    if kind <= HOST and (
        _NO_VALUE.search(value) is not None or (name == b"te" and value.lower() != b"trailers")
    ):
        kind = MALFORMED
    return HeaderField(
        name, value, ENTRY_BYTES + len(name) + len(value), kind, key, str(value, "latin-1").strip(_SPACES)
    )


def _kind_of(name: bytes) -> int:
    if name in PSEUDO:
        return PSEUDO_HEADER
    if name in OF_TRANSPORT:
        return TRANSPORT
    special = {b"host": HOST, b"content-length": LENGTH, b":status": STATUS}.get(name)
    if special is not None:
        return special
    is_allowed = _NAME.fullmatch(name) is not None and name[0] != _COLON and name not in FORBIDDEN
    return KEPT if is_allowed else MALFORMED


def read_headers(fields: Iterable[HeaderField]) -> RequestHeaders:
    """The headers of a request. Raises ValueError for a malformed request."""
    transport: dict[str, str] = {}
    kept: dict[str, str] = {}
    pseudo_count = 0
    for _, _, _, kind, key, text in fields:
        if kind == KEPT:
            kept[key] = text
        elif kind == TRANSPORT:
            transport[key] = text
        elif kind == PSEUDO_HEADER:
            if kept or key in transport or len(transport) != pseudo_count:
                raise ValueError(f"pseudo-header {key} comes twice or behind others")
            pseudo_count += 1
            transport[key] = text
        elif kind == LENGTH or (kind == HOST and key not in kept):
            kept[key] = text
        else:
            raise ValueError(
                f"header {key[:40]!r} is not allowed, comes twice, or has characters that are not allowed"
            )
    if not all(transport.get(name) for name in REQUIRED):
        raise ValueError("one of :method, :scheme and :path is missing")
    if "host" in kept and transport.get(":authority", kept["host"]) != kept["host"]:  # gRPC needs neither
        raise ValueError("host and :authority differ")
    return RequestHeaders(transport, kept)


def are_trailers(fields: Iterable[HeaderField]) -> bool:
    """Whether a request may have these trailers (RFC 9113, 8.1)."""
    return all(field.kind in (KEPT, TRANSPORT, HOST, LENGTH) for field in fields)
