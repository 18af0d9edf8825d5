"""The headers of one request: whether HTTP/2 allows them, and as a mapping. Core.

Checked here and not by h2, which ends the whole connection for an error of one stream (RFC 9113, 8.1.1).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
REQUIRED = (":method", ":scheme", ":path")
# Headers of HTTP/1: they have no meaning in HTTP/2, but intermediaries may act on them (RFC 9113, 8.2.2).
FORBIDDEN = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
RESTRICTED = FORBIDDEN | {b"te", b"host"}
_COLON = 0x3A
# A name and a value, each with the end of a line: RFC 9113, 8.2.1. Spaces around a value are stripped in place of refused, as
# gRPC's specification has it: its C core sends them.
_LINES = re.compile(rb"(?::?[!-9;-@\[-~]+\n[^\0\r\n]*\n)*")
_SPACES = " \t"

# Headers that only the transport reads: a pending call need not store them.
OF_TRANSPORT = {str(name, "latin-1") for name in PSEUDO} | {
    "content-type", "te", "user-agent", "accept-encoding", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding",
}  # fmt: skip


def kept_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a call stores. Calls share the names, because thousands of calls may be pending."""
    return {sys.intern(name): value for name, value in headers.items() if name not in OF_TRANSPORT}


def read_headers(headers: Iterable[Any]) -> dict[str, str]:
    """Headers by name, the last value of each, of (name, value) in bytes. Raises ValueError for a malformed request."""
    fields = list(headers)
    _check_characters(fields)
    found: dict[str, str] = {}
    pseudo_count = 0
    for name, value in fields:
        text = str(name, "latin-1")
        if name[0] == _COLON:
            pseudo_count += 1
            if name not in PSEUDO or text in found or len(found) != pseudo_count - 1:
                raise ValueError(f"pseudo-header {name[:40]!r} is unknown, comes twice or behind others")
        elif name in RESTRICTED:
            _check_restricted(name, value)
            if text in found and name == b"host":
                raise ValueError("there are several headers host")
        found[text] = str(value, "latin-1").strip(_SPACES)
    if not all(found.get(name) for name in REQUIRED):
        raise ValueError("one of :method, :scheme and :path is missing")
    if "host" in found and found.get(":authority", found["host"]) != found["host"]:  # gRPC needs neither
        raise ValueError("host and :authority differ")
    return found


def check_trailers(headers: Iterable[Any]) -> None:
    """Raise ValueError for trailers that make their request malformed (RFC 9113, 8.1)."""
    fields = list(headers)
    _check_characters(fields)
    for name, value in fields:
        if name[0] == _COLON:
            raise ValueError(f"pseudo-header {name[:40]!r} is among the trailers")
        _check_restricted(name, value)


def _check_characters(fields: list[Any]) -> None:
    lines = b"".join([b"%b\n%b\n" % field for field in fields])
    if lines.count(b"\n") != 2 * len(fields) or _LINES.fullmatch(lines) is None:
        raise ValueError("the name or value of a header has characters that are not allowed")


def _check_restricted(name: bytes, value: bytes) -> None:
    if name in FORBIDDEN or (name == b"te" and value.lower() != b"trailers"):
        raise ValueError(f"header {name.decode()} is not allowed in HTTP/2")
