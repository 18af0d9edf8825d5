"""Interface for serving another protocol on a remoting server's connection, recognized by its first byte."""

from __future__ import annotations

from typing import Protocol

HTTP2_FIRST_BYTE = 0x50  # "P" of HTTP/2's preface; a frame of remoting begins with 0x00 or 0x01


class OtherProtocol(Protocol):
    """Receiver of the bytes of a connection with another protocol; it sends with Connection.write().

    A protocol, because broker/grpc, which speaks HTTP/2, lies above.
    """

    @property
    def is_busy(self) -> bool:
        """True while calls are open whose answers are due soon."""
        ...

    @property
    def is_full(self) -> bool:
        """True while nothing more is to be read."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that it keeps until the peer takes them."""
        ...

    def receive(self, data: bytes) -> None:
        """Take bytes of the peer. Called once with those of each read."""
        ...

    def resume(self) -> None:
        """The peer takes bytes again."""
        ...

    def go_away(self) -> None:
        """The server is about to stop: tell the peer."""
        ...

    def lost(self) -> None:
        """The connection is gone."""
        ...
