"""What the gRPC connections of one broker have done since its start, for metrics. Counters only; loads no package."""

from __future__ import annotations

from collections import Counter


class GrpcTraffic:
    """Counters of all connections. Belongs to the event loop.

    `calls`: ended calls by (RPC, status), where the status is the name of the response's code, or gRPC's status of a call without a
    response; "CANCELLED" for calls that ended before they were answered. `refused`: refusals by bound: the key of a
    setting, or the rate or limit for which a connection was closed.
    """

    def __init__(self) -> None:
        self.connection_count = 0  # open now
        self.call_count = 0  # open now
        self.received_bytes = 0
        self.sent_bytes = 0
        self.calls: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()

    def connected(self) -> None:
        """A connection begins."""
        self.connection_count += 1

    def disconnected(self) -> None:
        """A connection is gone."""
        self.connection_count -= 1

    def call_started(self) -> None:
        """A call is served."""
        self.call_count += 1

    def call_ended(self, rpc: str, status: str) -> None:
        """A call that was started has ended."""
        self.call_count -= 1
        self.calls[rpc, status] += 1

    def calls_answered(self, rpc: str, status: str, count: int) -> None:
        """The HTTP/2 core has answered calls that were never started here."""
        self.calls[rpc, status] += count

    def call_refused(self, rpc: str, status: str) -> None:
        """A call was refused before it was started."""
        self.calls[rpc, status] += 1

    def refuse(self, bound: str) -> None:
        """A bound was reached."""
        self.refused[bound] += 1

    def received(self, byte_count: int) -> None:
        """Bytes came."""
        self.received_bytes += byte_count

    def sent(self, byte_count: int) -> None:
        """Bytes left."""
        self.sent_bytes += byte_count
