"""Interface between a connection and a transport that reads for the burst hook (direct.py)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class BurstReader(Protocol):
    """A transport that passes reads directly to the burst hook while the connection `takes_bursts`.

    A protocol, because direct.py, which implements it, is in a higher layer.
    """

    def stop_serving(self) -> None:
        """Pass all bytes to the connection from now on."""

    def hand_back(self) -> None:
        """As stop_serving(), but only if the transport buffers the beginning of a frame."""
