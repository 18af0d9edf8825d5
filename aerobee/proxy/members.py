"""The clients of a proxy: their settings, heartbeats and ends, and the transaction checks of brokers, which go to a client that
publishes to the topic.

A topic with a client that publishes to it is a producer group of the proxy at every broker of the topic, so that brokers send their
checks here. Source: ClientActivity, ClusterTransactionService (RocketMQ 5.5.0).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aerobee.access.gate import Gate
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.client import GrpcClient
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.names import group_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.errors import AerobeeError, MalformedRecord
from aerobee.grpc.proto import messages as pb
from aerobee.log_throttle import LogThrottle
from aerobee.message import decode_record
from aerobee.property_names import PRODUCER_GROUP
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.renewals import ProxyRenewals
from aerobee.proxy.sends import TransactionId
from aerobee.remoting.body.heartbeat import HeartbeatData
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer

log = logging.getLogger(__name__)

PUBLISHED_MAX = 1_000  # topics of all clients that publish: the groups that brokers take of one connection (clientGroupsMax)
PUBLISHERS_MAX = 1_000  # clients of one topic that checks may go to


class ProxyMembers:
    """Serves Heartbeat and NotifyClientTermination, and registers what clients say in their settings."""

    def __init__(
        self, cluster: ProxyCluster, clients: ClientTable, renewals: ProxyRenewals, gate: Gate
    ) -> None:
        self._gate = gate
        self._access = RpcAccess(gate)
        self._cluster = cluster
        self._clients = clients
        self._renewals = renewals
        self._publishers: dict[str, dict[GrpcClient, None]] = {}
        self._refused = LogThrottle(log, cluster.clock.monotonic)
        cluster.session.handlers[RequestCode.CHECK_TRANSACTION_STATE.value] = self._checked

    def handlers(self) -> Mapping[int, Handler]:
        """What Telemetry asks of a broker: the heartbeat that a client's settings stand for."""
        return {RequestCode.HEART_BEAT.value: self._joined}

    async def heartbeat(self, context: RpcContext, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """The client is alive. Raises RpcRefused."""
        self._access.identify(context.peer, context.metadata)
        self._renewals.seen(context.client)
        self._clients.get(context)
        return pb.HeartbeatResponse(status=status())

    async def terminate(
        self, context: RpcContext, request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        """The client leaves; its unacknowledged messages that are renewed come back soon. Raises RpcRefused."""
        fields = {"clientID": context.client_id}
        if request.group.name:
            fields["consumerGroup"] = group_name(request.group)
        asked = RemotingCommand(RequestCode.UNREGISTER_CLIENT, fields)
        self._access.check(context.peer, context.metadata, asked)
        client = self._clients.get(context)
        if client is not None:
            client.close("it has said so")
        self._renewals.client_left(context.client)
        return pb.NotifyClientTerminationResponse(status=status())

    def note_producer(self, context: RpcContext, topic: str) -> None:
        """The client publishes to this topic. Raises RpcRefused (TOO_MANY_REQUESTS)."""
        self._publishes(self._clients.enter(context), topic)

    async def _joined(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        data = HeartbeatData.decode(request.body)
        if isinstance(peer, GrpcClient):
            for producer in data.producer_data_set:
                self._publishes(peer, producer.group_name)
        for consumer in data.consumer_data_set:
            await self._cluster.group(consumer.group_name)  # the answer to the settings has its values
        return request.reply()

    def _publishes(self, client: GrpcClient, topic: str) -> None:
        publishers = self._publishers.get(topic)
        if publishers is None:
            if len(self._publishers) >= PUBLISHED_MAX:
                self._refused.warn(
                    "published",
                    "%d topics have publishers: transaction checks of %s reach no client here",
                    PUBLISHED_MAX,
                    topic,
                )
                return
            publishers = self._publishers[topic] = {}
            session = self._cluster.session
            session.join_producer(topic)
            session.tasks.spawn(self._announce(topic), "proxy-producer")
        if client in publishers or len(publishers) >= PUBLISHERS_MAX:
            return
        publishers[client] = None

        def closed(_: object) -> None:
            publishers.pop(client, None)
            if not publishers:
                self._forget(topic, publishers)

        client.on_close(closed)

    def _forget(self, topic: str, publishers: dict[GrpcClient, None]) -> None:
        """The topic has no publishers, or does not exist: it does not count any more."""
        if self._publishers.get(topic) is publishers:
            del self._publishers[topic]
            self._cluster.session.leave_producer(topic)

    async def _announce(self, topic: str) -> None:
        """Let the topic's brokers know of the producer group now; heartbeats repeat it. Clients name topics that do not exist, too: these
        are forgotten, until a half message is sent to one."""
        publishers = self._publishers.get(topic, {})
        try:
            await self._cluster.route(topic)
            await self._cluster.session.heartbeat()
        except RpcRefused as error:
            self._forget(topic, publishers)
            log.info("%s", error)
        except AerobeeError as error:
            log.info("brokers of topic %s do not know its producers yet: %s", topic, error)

    def _checked(self, peer: Peer, request: RemotingCommand) -> None:
        """A broker checks a transaction: pass the check to one client that publishes to the topic, to each in turn."""
        try:
            record = decode_record(request.body, check_crc=False)
        except MalformedRecord as error:
            log.warning("the check of broker %s has no message: %s", peer.address, error)
            return
        topic = record.properties.get(PRODUCER_GROUP, record.topic)
        publishers = self._publishers.get(topic, {})
        for client in list(publishers):
            if client.is_open and self._gate.may_send(client.principal, client, topic):
                publishers.pop(client)
                publishers[client] = None  # the next check goes to another one
                found = TransactionId(
                    request.field("transactionId") or request.field("msgId") or "",
                    request.field("bname") or self._broker_at(peer.address),
                    request.integer("tranStateTableOffset"),
                    request.integer("commitLogOffset"),
                )
                ext = {**(request.ext or {}), "transactionId": str(found)}
                client.invoke_oneway(RemotingCommand(request.code, ext, request.body))
                return
        log.info("no client here can say what became of a transaction of topic %s", topic)

    def _broker_at(self, address: str) -> str:
        for broker in self._cluster.session.routes.brokers():
            if address in broker.broker_addrs.values():
                return broker.broker_name
        return ""
