"""Heartbeat and NotifyClientTermination.

Differences from RocketMQ 5.5.0, which answers UNRECOGNIZED_CLIENT_TYPE: both are OK for a client whose settings are not known. No
client sends its settings because of such an answer, and after a restart of the broker the official Python client sends heartbeats
without settings for minutes.
"""

from __future__ import annotations

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.names import group_name
from aerobee.broker.grpc.refusal import status
from aerobee.broker.grpc.renewals import Renewals
from aerobee.broker.grpc.requests import BrokerRequests, language_of
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.grpc.proto import messages as pb
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import VERSION, RemotingCommand


class ClientRpcs:
    """Serves both RPCs."""

    def __init__(
        self,
        *,
        clients: ClientTable,
        producers: ProducerRegistry,
        renewals: Renewals,
        requests: BrokerRequests,
        access: RpcAccess,
        live: LiveConfig,
    ) -> None:
        self._clients = clients
        self._producers = producers
        self._renewals = renewals
        self._live = live
        self._requests = requests
        self._access = access

    async def heartbeat(self, context: RpcContext, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Record that the client is alive. Raises RpcRefused, RemoteError."""
        self._access.identify(context.peer, context.metadata)
        self._renewals.seen(context.client)
        client = self._clients.get(context)
        if client is not None and client.heartbeat is not None:
            body = client.heartbeat.encode()
            await self._requests.ask(context, RequestCode.HEART_BEAT, {}, body, peer=client)
        return pb.HeartbeatResponse(status=status())

    def note_producer(self, context: RpcContext, topic: str) -> None:
        """Register the sender of a half message as a producer of the topic, so that it receives transaction checks even
        if its settings do not name the topic. The caller has checked its user. Raises RpcRefused.
        """
        client = self._clients.enter(context)
        topics = self._producers.groups_of(client)
        if topic not in topics and len(topics) < self._live.value.client_groups_max:
            self._producers.register(
                topic,
                client,
                client.client_id,
                language=language_of(context.metadata),
                version=VERSION,
                principal=context.peer.principal,
            )

    def terminate(
        self, context: RpcContext, request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        """The client leaves its groups; its unacknowledged messages are redelivered to them. Raises RpcRefused."""
        ext = {"clientID": context.client_id}
        if request.group.name:
            ext["consumerGroup"] = group_name(request.group)
        asked = RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext)
        self._access.check(context.peer, context.metadata, asked)
        client = self._clients.get(context)
        if client is not None:
            client.close("it has said so")
        self._renewals.client_left(context.client)
        return pb.NotifyClientTerminationResponse(status=status())
