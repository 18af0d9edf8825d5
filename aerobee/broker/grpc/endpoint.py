"""The gRPC endpoint of a broker: the RPCs that it serves, and a session for each connection that speaks gRPC.

NOT_SERVED lists the RPCs of the service that are answered UNIMPLEMENTED; with those of make_rpcs() they are all that
messages.proto has, which a test compares. docs/grpc.md shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aerobee.access.gate import Gate
from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.admin_calls import AdminCalls
from aerobee.broker.grpc.admin_rpcs import make_admin_rpcs
from aerobee.broker.grpc.client_rpcs import ClientRpcs
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.connections import (
    GrpcConnections,
    SharedBounds,
)
from aerobee.broker.grpc.lite_rpcs import LiteRpcs
from aerobee.broker.grpc.native_sends import Http2Bursts, send_settings
from aerobee.broker.grpc.pop_rpcs import PopServices, make_pop_rpcs, make_renewals
from aerobee.broker.grpc.pull_rpcs import OwnQueues, PullRpcs
from aerobee.broker.grpc.query_route import RouteRpcs
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import Rpc, bidirectional, streaming, unary
from aerobee.broker.grpc.send_message import SendRpc
from aerobee.broker.grpc.session import GrpcSession, Prove
from aerobee.broker.grpc.telemetry import Telemetry
from aerobee.broker.grpc.transaction_rpcs import TransactionRpcs
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.ack_service import AckService
from aerobee.broker.pop.pop_service import PopService
from aerobee.broker.send.send_back_service import SendBackService
from aerobee.broker.send.send_service import SendService
from aerobee.broker.transaction.transaction_table import TransactionTable
from aerobee.clock import Clock
from aerobee.grpc.core import MakeHttp2, python_core
from aerobee.grpc.element_count import Nested
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.proto import messages as pb
from aerobee.remoting.connection import Connection
from aerobee.remoting.peer import Handler

# Messages, their system properties; properties of users are fields of their messages.
NESTED_IN_SEND: Nested = {1: {3: {}}}
NOT_SERVED: tuple[str, ...] = ()


class GrpcEndpoint:
    """Creates a session for each gRPC connection."""

    def __init__(
        self,
        rpcs: Iterable[Rpc],
        *,
        clock: Clock,
        connections: GrpcConnections,
        prove: Prove,
        make_http2: MakeHttp2 | None = None,
        limits: Http2Limits | None = None,
        bursts: Http2Bursts | None = None,
    ) -> None:
        """`prove` as GrpcSession has it. `make_http2` makes the HTTP/2 core of a connection, Python's by default or the native one;
        `bursts` is what serves the latter's sends."""
        self._connections = connections
        self._prove = prove
        self._bursts = bursts
        self.rpcs: Mapping[str, Rpc] = {rpc.path: rpc for rpc in rpcs}
        self._clock = clock
        self._make_http2 = make_http2 or python_core()
        self._limits = limits or Http2Limits()

    def session(self, connection: Connection) -> GrpcSession:
        """The session that receives the bytes of a new connection."""
        return GrpcSession(
            connection,
            self.rpcs,
            make_http2=self._make_http2,
            limits=self._limits,
            clock=self._clock,
            connections=self._connections,
            prove=self._prove,
            bursts=self._bursts,
        )


def make_endpoint(
    parts: BrokerParts,
    *,
    sends: SendService,
    pops: PopService,
    acks: AckService,
    send_backs: SendBackService,
    lite: LiteService,
    transactions: Callable[[], TransactionTable],
    handlers: Mapping[int, Handler],
    gate: Gate,
    traffic: GrpcTraffic,
    make_http2: MakeHttp2 | None = None,
    fast_path: FastPath | None = None,
) -> GrpcEndpoint:
    """The endpoint of one broker. `handlers` are its dispatch, behind `gate`; `traffic` counts what it does. `fast_path` serves ordinary sends
    where it and the HTTP/2 core are native."""
    serves_sends = (
        fast_path is not None and make_http2 is not None and fast_path.serve_grpc(send_settings(parts.topics))
    )
    access = RpcAccess(gate)
    shared = SharedBounds(
        calls_max=lambda: parts.live.value.grpc_calls_max,
        request_bytes_max=lambda: parts.live.value.grpc_request_bytes_max,
        reached=parts.bounds.reached,
    )
    return GrpcEndpoint(
        make_rpcs(
            parts,
            sends=sends,
            consuming=PopServices(pops=pops, acks=acks, send_backs=send_backs, lite=lite),
            transactions=transactions,
            handlers=handlers,
            access=access,
        ),
        clock=parts.clock,
        make_http2=make_http2,
        connections=GrpcConnections(shared, traffic),
        prove=lambda context: access.prove(context.peer, context.metadata),
        bursts=fast_path.http2_burst if fast_path is not None and serves_sends else None,
    )


def make_rpcs(
    parts: BrokerParts,
    *,
    sends: SendService,
    consuming: PopServices,
    transactions: Callable[[], TransactionTable],
    handlers: Mapping[int, Handler],
    access: RpcAccess,
) -> tuple[Rpc, ...]:
    """Every RPC that is served."""
    requests, clients = BrokerRequests(handlers, access), ClientTable(parts.clock)
    renewals = make_renewals(parts, consuming)
    members = ClientRpcs(
        clients=clients,
        producers=parts.producers,
        renewals=renewals,
        requests=requests,
        access=access,
        live=parts.live,
    )
    routes = RouteRpcs(topics=parts.topics, groups=parts.groups, identity=parts.identity, access=access)
    send = SendRpc(
        service=sends,
        topics=parts.topics,
        ack=parts.ack,
        config=parts.store.config,
        access=access,
        clock=parts.clock,
        note_producer=members.note_producer,
        takes_lite=consuming.lite.is_enabled,
    )
    telemetry = Telemetry(
        clients=clients,
        requests=requests,
        access=access,
        groups=parts.groups,
        body_bytes_max=lambda: parts.store.config.max_message_size,
        clock=parts.clock,
    )
    ends = TransactionRpcs(table=transactions, topics=parts.topics, requests=requests, access=access)
    lites = LiteRpcs(lite=consuming.lite, clients=clients, renewals=renewals, access=access)
    pulls = PullRpcs(queues=OwnQueues(parts.topics, requests), access=access, clock=parts.clock)
    return (
        unary("QueryRoute", routes.query_route),
        unary("QueryAssignment", routes.query_assignment),
        unary(
            "SendMessage", send.send, request_bytes_max=Http2Limits().message_bytes_max, nested=NESTED_IN_SEND
        ),
        *make_pop_rpcs(parts, consuming, renewals=renewals, access=access),
        unary("Heartbeat", members.heartbeat),
        unary("NotifyClientTermination", members.terminate),
        bidirectional("Telemetry", pb.TelemetryCommand, telemetry.open),
        unary("EndTransaction", ends.end),
        unary("RecallMessage", ends.recall),
        streaming("PullMessage", pulls.pull),
        unary("UpdateOffset", pulls.update_offset),
        unary("GetOffset", pulls.get_offset),
        unary("QueryOffset", pulls.query_offset),
        unary("SyncLiteSubscription", lites.synchronize),
        *make_admin_rpcs(
            parts, lite=consuming.lite, clients=clients, calls=AdminCalls(requests, access), send=send
        ),
    )
