"""The gRPC connections of one broker, and the bounds over all of them together: open calls, and bytes of requests.

limits.py bounds one connection; many connections together could take any amount of memory. When a bound over all is reached, the
connection with the most pays: a new call elsewhere ends the newest calls of that connection, and its incomplete requests end when
requests take too many bytes. So a client that opens many calls does not keep other
clients from opening theirs. A call counts as one, and as one more for each 2 KiB that its metadata takes in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aerobee.broker.metrics.grpc_traffic import GrpcTraffic

# Why HTTP/2 connections are closed (http2_connection.py), and the bound in metrics; others have OTHER.
CLOSED_BY = {
    "too many streams are reset": "resets",
    "too_many_pings": "pings",
    "too many SETTINGS frames": "settings",
    "too many frames without effect": "empty_frames",
}
OTHER = "connection"
_NO_REFUSALS = ("the peer said goodbye", "the server is shutting down")
CALLS_MAX, REQUEST_BYTES_MAX = "grpcCallsMax", "grpcRequestBytesMax"
METADATA_BYTES_OF_CALL = 2_048  # those of official clients take less
HEADER_BYTES = 128  # that a header takes besides its characters
LOOP_SHARE_S = 0.02  # of one event loop iteration, for all connections
SHORT_S = 0.001  # less than this of one connection is not counted


def call_weight(metadata: Mapping[str, str]) -> int:
    """As how many calls a call with this metadata counts."""
    characters = sum(map(len, metadata)) + sum(map(len, metadata.values()))
    return 1 + (characters + HEADER_BYTES * len(metadata)) // METADATA_BYTES_OF_CALL


class Holder(Protocol):
    """One connection, as the bounds see it. A protocol, because session.py lies above."""

    @property
    def call_weight(self) -> int:
        """The sum of call_weight() of the open calls."""
        ...

    @property
    def incomplete_bytes(self) -> int:
        """Bytes of requests whose clients may send more."""
        ...

    def end_newest_call(self, reason: str) -> None:
        """End the call that was opened last, with RESOURCE_EXHAUSTED."""
        ...

    def end_incomplete_calls(self, reason: str) -> None:
        """End the calls whose clients may send more of a request, with RESOURCE_EXHAUSTED."""
        ...


@dataclass(frozen=True, slots=True)
class SharedBounds:
    """The bounds in force, read at each use. `reached` is called with the setting's key, a text, and the peer's address."""

    calls_max: Callable[[], int]
    request_bytes_max: Callable[[], int]
    reached: Callable[[str, str, str], object]


class LoopShare:
    """The share of an event loop iteration that all connections have together.

    The core bounds what it interprets of one connection in one go, some 20 ms; dozens of connections in one iteration were a second.
    """

    def __init__(self) -> None:
        self.is_over = False  # further connections have to wait for the next iteration
        self._used_s = 0.0  # in this iteration
        self._is_planned = False
        self._waiting: deque[Callable[[], None]] = deque()

    def used(self, seconds: float) -> None:
        """Count the time that serving one connection took, at least SHORT_S."""
        self._used_s += seconds
        self.is_over = self._used_s >= LOOP_SHARE_S
        self._plan()

    def wait(self, serve: Callable[[], None]) -> None:
        """Call `serve` in one of the next iterations, after those that wait already."""
        self._waiting.append(serve)
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """The next iteration. Its reads are served after this."""
        self._is_planned, self._used_s, self.is_over = False, 0.0, False
        for _ in range(len(self._waiting)):
            if self.is_over:
                break
            self._waiting.popleft()()
        if self._waiting:
            self._plan()


class GrpcConnections:
    """The open connections and what they hold together. `traffic` counts for metrics. Belongs to the event loop."""

    def __init__(self, bounds: SharedBounds, traffic: GrpcTraffic) -> None:
        self.traffic = traffic
        self.loop_share = LoopShare()
        self._bounds = bounds
        self._open: dict[Holder, None] = {}
        self._request_bytes = 0
        self._call_weight = 0
        self._most_calls: tuple[Holder, int] | None = None  # and how many it had when it was found

    def enter(self, connection: Holder) -> None:
        """A connection begins."""
        self._open[connection] = None
        self.traffic.connected()

    def leave(self, connection: Holder) -> None:
        """A connection is gone; its calls have ended, its bytes are given back."""
        if self._open.pop(connection, self) is None:
            self.traffic.disconnected()
        if self._most_calls is not None and self._most_calls[0] is connection:
            self._most_calls = None

    def closed(self, reason: str) -> None:
        """The core has closed a connection, for this reason."""
        if reason not in _NO_REFUSALS:
            self.traffic.refuse(CLOSED_BY.get(reason, OTHER))

    # --- calls

    def admit_call(self, connection: Holder, weight: int, address: str) -> str:
        """Empty when the connection may open one more call, of this weight; else why not. Ends calls of the connection with the most, while
        that has more than this one."""
        limit = self._bounds.calls_max()
        if self._call_weight + weight <= limit:
            return ""
        text = (
            f"the open calls on all gRPC connections count as {self._call_weight} and a further one as {weight}, "
            f"at most {limit} are allowed ({CALLS_MAX})"
        )
        self._reached(CALLS_MAX, text, address)
        while self._call_weight + weight > limit:
            holder = self._connection_with_most_calls()
            if holder is None or holder.call_weight <= connection.call_weight + weight:
                return text
            holder.end_newest_call(text)
        return ""

    def call_opened(self, weight: int) -> None:
        """A call that was admitted begins."""
        self._call_weight += weight

    def call_closed(self, weight: int) -> None:
        """It has ended."""
        self._call_weight -= weight

    def _connection_with_most_calls(self) -> Holder | None:
        # Looked for again when half of its calls are gone: looking at each connection for each call would be a defence that attacks.
        known = self._most_calls
        if known is None or known[0].call_weight * 2 < known[1]:
            holder = max(self._open, key=lambda each: each.call_weight, default=None)
            known = self._most_calls = None if holder is None else (holder, holder.call_weight)
        return None if known is None else known[0]

    # --- bytes of requests

    def admit_request(self, byte_count: int, address: str) -> str:
        """Empty when a request of this size is served now; else why not. Ends larger incomplete requests instead."""
        return self._make_room(byte_count, byte_count, address)

    def change_bytes(self, change: int, address: str) -> None:
        """The requests of one connection take `change` more bytes, fewer if it is negative. May end incomplete requests, of any connection."""
        self._request_bytes += change
        if change > 0:
            self._make_room(0, 0, address)

    def _make_room(self, byte_count: int, spared_bytes: int, address: str) -> str:
        limit = self._bounds.request_bytes_max()
        if self._request_bytes + byte_count <= limit:
            return ""
        text = self._too_many_bytes(limit, address)
        holder = max(self._open, key=lambda each: each.incomplete_bytes)
        if holder.incomplete_bytes > spared_bytes:
            holder.end_incomplete_calls(text)
        return "" if self._request_bytes + byte_count <= limit else text

    def _too_many_bytes(self, limit: int, address: str) -> str:
        text = (
            f"requests on all gRPC connections take {self._request_bytes} bytes, at most {limit} are allowed "
            f"({REQUEST_BYTES_MAX})"
        )
        self._reached(REQUEST_BYTES_MAX, text, address)
        return text

    def _reached(self, key: str, text: str, address: str) -> None:
        self.traffic.refuse(key)
        self._bounds.reached(key, text.removesuffix(f" ({key})"), address)
