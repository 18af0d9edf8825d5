"""The headers of one request: whether HTTP/2 allows them, and as a mapping. Core.

Checked here and not by h2, which ends the whole connection for an error of one stream (RFC 9113, 8.1.1).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
REQUIRED = (":method", ":scheme", ":path")
# Headers of HTTP/1: they have no meaning in HTTP/2, but intermediaries may act on them (RFC 9113, 8.2.2).
FORBIDDEN = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_COLON = 0x3A

# Headers that only the transport reads: a pending call need not store them.
OF_TRANSPORT = {str(name, "latin-1") for name in PSEUDO} | {
    "content-type", "te", "user-agent", "accept-encoding", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding",
}  # fmt: skip


def kept_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a call stores. Calls share the names, because thousands of calls may be pending."""
    return {sys.intern(name): value for name, value in headers.items() if name not in OF_TRANSPORT}


def read_headers(headers: Iterable[Any]) -> dict[str, str]:
    """Headers by name, the last value of each, of (name, value) in bytes. Raises ValueError for a malformed request."""
    found: dict[str, str] = {}
    pseudo_count = 0
    for name, value in headers:
        if not name or name != name.lower():
            raise ValueError(f"header name {name[:40]!r} is not in lower case")
        text = str(name, "latin-1")
        if name[0] == _COLON:
            pseudo_count += 1
            if name not in PSEUDO or text in found or len(found) != pseudo_count - 1:
                raise ValueError(f"pseudo-header {name[:40]!r} is unknown, comes twice or behind others")
        elif name in FORBIDDEN or (name == b"te" and value != b"trailers"):
            raise ValueError(f"header {text} is not allowed in HTTP/2")
        found[text] = str(value, "latin-1").strip()
    if not all(found.get(name) for name in REQUIRED):
        raise ValueError("one of :method, :scheme and :path is missing")
    return found
