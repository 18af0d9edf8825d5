"""The clients that speak gRPC, by client id and user. A client is removed by its NotifyClientTermination, or after a
long silence without a Telemetry stream.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from aerobee.broker.grpc.client import GrpcClient
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.clock import Clock
from aerobee.grpc.proto import messages as pb

CLIENTS_MAX = 20_000
SILENCE_S = 120.0  # channelExpiredTimeout
LOOKED_AT = 8  # of the longest silent, each time that one comes


class ClientTable:
    """The gRPC clients of one broker. Belongs to the event loop. With access control, each user (`principal` of the
    call) has separate client ids.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: OrderedDict[tuple[str, str], GrpcClient] = OrderedDict()  # the longest silent first

    def __len__(self) -> int:
        return len(self._clients)

    def all(self) -> Iterable[GrpcClient]:
        """Every known client, the longest silent first."""
        return self._clients.values()

    def get(self, context: RpcContext) -> GrpcClient | None:
        """The client that made a call, None for one that is not known."""
        key = (context.client_id, context.peer.principal)
        client = self._clients.get(key)
        if client is not None:
            client.touch(context, self._clock.monotonic())
            self._clients.move_to_end(key)
        return client

    def enter(self, context: RpcContext) -> GrpcClient:
        """The client that made a call; it is known from now on. Raises RpcRefused (TOO_MANY_REQUESTS)."""
        client = self.get(context)
        if client is not None:
            return client
        self._forget_silent()
        if len(self._clients) >= CLIENTS_MAX:
            raise RpcRefused(pb.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are connected, the maximum")
        key = (context.client_id, context.peer.principal)
        client = self._clients[key] = GrpcClient(*key, context, self._clock.monotonic())

        def closed(_: object) -> None:
            self._clients.pop(key, None)

        client.on_close(closed)
        return client

    def _forget_silent(self) -> None:
        now = self._clock.monotonic()
        for key, client in list(self._first(LOOKED_AT)):
            if now - client.seen < SILENCE_S:
                break
            if client.has_stream:
                client.seen = now
                self._clients.move_to_end(key)
            else:
                client.close("silent")

    def _first(self, count: int) -> list[tuple[tuple[str, str], GrpcClient]]:
        found = []
        for item in self._clients.items():
            found.append(item)
            if len(found) == count:
                break
        return found
