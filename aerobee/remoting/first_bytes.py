"""What the first bytes of a server's connection say: a PROXY header, if its peer may send one, then TLS or plain. Core.

PROXY header (proxy_header.py)   from peers that the server names
0x16                             TLS
"P"                              HTTP/2, also inside TLS (other_protocol.py)
0x00, 0x01                       a frame of remoting, also inside TLS
"""

from __future__ import annotations

from aerobee.host_port import is_loopback
from aerobee.remoting.proxy_header import ProxyHeaderReader, Source
from aerobee.remoting.tls import ServerTls, TlsPump, choose_tls


class FirstBytes:
    """The first bytes of one connection, of a server with these settings of TLS. `source` is known once take() has returned bytes."""

    __slots__ = ("_balancer", "_header", "_listener", "_settings")

    def __init__(self, settings: ServerTls | None, listener: str, *, balancer: str | None) -> None:
        """`balancer`: the peer's host, if it may send a PROXY header."""
        self._settings = settings
        self._listener = listener
        self._balancer = balancer
        self._header = None if balancer is None else ProxyHeaderReader()

    @property
    def source(self) -> Source | None:
        """The client that a PROXY header names; None for a loopback address, unless the balancer is on this machine: it is that of the
        balancer's machine, and must not pass for one of this."""
        found = None if self._header is None else self._header.source
        if found is not None and is_loopback(found[0]) and not is_loopback(self._balancer or ""):
            return None
        return found

    @property
    def has_begun(self) -> bool:
        """Whether a header has begun that is not complete."""
        return self._header is not None and self._header.has_begun

    def take(self, data: bytes) -> bytes:
        """Return the bytes behind the header, if there is one; b"" while it is not complete. Raises WireError."""
        return data if self._header is None else self._header.feed(data) or b""

    def choose_tls(self, first_byte: int) -> TlsPump | None:
        """As choose_tls() in tls.py, for the first byte that take() returned."""
        return choose_tls(first_byte, self._settings, self._listener)
