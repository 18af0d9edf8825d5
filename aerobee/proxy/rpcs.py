"""The RPCs that a proxy serves: those of RocketMQ's proxy, and those of brokers of Aerobee for pulls and offsets."""

from __future__ import annotations

from aerobee.access.gate import Gate
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.endpoint import NESTED_IN_SEND
from aerobee.broker.grpc.pull_rpcs import PullRpcs
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import Rpc, bidirectional, streaming, unary
from aerobee.broker.grpc.telemetry import Telemetry
from aerobee.clock import Clock
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.acks import ProxyAcks
from aerobee.proxy.admin import ProxyAdmin
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.handles import Handles
from aerobee.proxy.lite import ProxyLite
from aerobee.proxy.members import ProxyMembers
from aerobee.proxy.pulls import ProxyQueues
from aerobee.proxy.receives import ProxyReceives
from aerobee.proxy.renewals import ProxyRenewals
from aerobee.proxy.routes import ProxyRoutes
from aerobee.proxy.sends import PROXIED_BODY_BYTES_MAX, ProxySends


def make_rpcs(
    cluster: ProxyCluster,
    *,
    handles: Handles,
    renewals: ProxyRenewals,
    clients: ClientTable,
    gate: Gate,
    clock: Clock,
) -> tuple[Rpc, ...]:
    """Every RPC that is served, each behind `gate`."""
    access = RpcAccess(gate)
    members = ProxyMembers(cluster, clients, renewals, gate)
    routes = ProxyRoutes(cluster, access)
    sends = ProxySends(cluster, access=access, note_producer=members.note_producer)
    acks = ProxyAcks(cluster, handles, renewals, access)
    pulls = PullRpcs(queues=ProxyQueues(cluster), access=access, clock=clock)
    telemetry = Telemetry(
        clients=clients,
        requests=BrokerRequests(members.handlers(), access),
        access=access,
        groups=cluster,
        body_bytes_max=lambda: PROXIED_BODY_BYTES_MAX,
        clock=clock,
    )
    return (
        unary("QueryRoute", routes.query_route),
        unary("QueryAssignment", routes.query_assignment),
        unary(
            "SendMessage",
            sends.send,
            request_bytes_max=Http2Limits().message_bytes_max,
            nested=NESTED_IN_SEND,
        ),
        streaming("ReceiveMessage", ProxyReceives(cluster, handles, renewals, access).receive),
        unary("AckMessage", acks.acknowledge, nested={}),
        unary("ChangeInvisibleDuration", acks.change),
        unary("ForwardMessageToDeadLetterQueue", acks.forward),
        unary("Heartbeat", members.heartbeat),
        unary("NotifyClientTermination", members.terminate),
        bidirectional("Telemetry", pb.TelemetryCommand, telemetry.open),
        unary("EndTransaction", sends.end),
        unary("RecallMessage", sends.recall),
        unary("SyncLiteSubscription", ProxyLite(cluster, clients, renewals, access).synchronize),
        streaming("PullMessage", pulls.pull),
        unary("UpdateOffset", pulls.update_offset),
        unary("GetOffset", pulls.get_offset),
        unary("QueryOffset", pulls.query_offset),
        *ProxyAdmin(cluster, clients, access, sends).rpcs(),
    )
