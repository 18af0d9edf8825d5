"""The headers of one request: whether HTTP/2 allows them, and as a mapping. Core.

Checked here and not by h2, which ends the whole connection for what concerns one stream (RFC 9113, 8.1.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PSEUDO = frozenset({":method", ":scheme", ":authority", ":path"})
REQUIRED = (":method", ":scheme", ":path")
# Of HTTP/1: they mean nothing here, and intermediaries may believe in them (RFC 9113, 8.2.2).
FORBIDDEN = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})


def read_headers(headers: Iterable[Any]) -> dict[str, str]:
    """Headers by name, the last value of each. Raises ValueError for a malformed request."""
    found: dict[str, str] = {}
    pseudo_count = 0
    for name, value in headers:
        if name.startswith(":"):
            pseudo_count += 1
            if name not in PSEUDO or name in found or len(found) != pseudo_count - 1:
                raise ValueError(f"pseudo-header {name[:40]!r} is unknown, comes twice or behind others")
        elif not name or name != name.lower():
            raise ValueError(f"header name {name[:40]!r} is not in lower case")
        elif name in FORBIDDEN or (name == "te" and value != "trailers"):
            raise ValueError(f"header {name} is not allowed in HTTP/2")
        found[name] = value.strip()
    if not all(found.get(name) for name in REQUIRED):
        raise ValueError("one of :method, :scheme and :path is missing")
    return found
