"""QueryRoute and QueryAssignment: this broker's queues of a topic, at the endpoint of the request.

Source: RouteActivity (RocketMQ 5.5.0). With R queues to read and W to write, the first R - min come as READ, then W - min as WRITE, then
min(R, W) as READ_WRITE; ids count up from 0 over the whole list, whose order never changes: clients compare whole lists.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.names import ECHOED_CHARS_MAX, echoed_topic, group_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.lite.lite_group import lite_group
from aerobee.broker.send.message_type import NORMAL
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.topic_table import TopicTable
from aerobee.grpc.proto import messages as pb
from aerobee.host_port import is_ip
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import FAQ, TYPE_ATTRIBUTE

ADDRESSES_MAX = 64  # of an access point: RocketMQ's clients separate them by semicolons
_ACCEPTED: Mapping[str, tuple[pb.MessageType, ...]] = {
    NORMAL: (pb.NORMAL,),
    "FIFO": (pb.FIFO,),
    "DELAY": (pb.DELAY,),
    "TRANSACTION": (pb.TRANSACTION,),
    "MIXED": (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION),
    "LITE": (pb.LITE,),
    "PRIORITY": (pb.PRIORITY,),
}


class RouteRpcs:
    """Serves both RPCs."""

    def __init__(
        self, *, topics: TopicTable, groups: GroupTable, identity: BrokerIdentity, access: RpcAccess
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._identity = identity
        self._access = access

    def query_route(self, context: RpcContext, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        """The topic's queues. Raises RpcRefused, RemoteError."""
        shown = echoed_topic(request.topic)
        name = shown.name
        asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        self._access.check(context.peer, context.metadata, asked)
        topic = self._topics.get(name)
        if topic is None:
            text = f"CODE: 17  DESC: No topic route info in name server for the topic: {name}\n{FAQ}"
            raise RpcRefused(pb.TOPIC_NOT_FOUND, text)
        queues = route_queues(topic, shown, self._broker(context, request.endpoints))
        return pb.QueryRouteResponse(status=status(), message_queues=queues)

    def query_assignment(
        self, context: RpcContext, request: pb.QueryAssignmentRequest
    ) -> pb.QueryAssignmentResponse:
        """Every consumer gets every queue: as one, or of a group that consumes in order one by one. Raises RpcRefused, RemoteError."""
        shown, group = echoed_topic(request.topic), group_name(request.group)
        name = shown.name
        asked = RemotingCommand(RequestCode.PULL_MESSAGE, {"topic": name, "consumerGroup": group})
        self._access.check(context.peer, context.metadata, asked)
        topic = self._topics.get(name)
        if topic is None:
            text = f"CODE: 17  DESC: No topic route info in name server for the topic: {name}\n{FAQ}"
            raise RpcRefused(pb.TOPIC_NOT_FOUND, text)
        if not topic.is_readable or topic.read_queue_nums <= 0:
            raise RpcRefused(pb.FORBIDDEN, "no readable queue")
        config = self._groups.get(group)
        in_order = config is not None and config.consume_message_orderly and lite_group(config) is None
        broker = self._broker(context, request.endpoints)
        permission = pb.READ_WRITE if topic.is_writable else pb.READ
        assignments = [
            pb.Assignment(
                message_queue=pb.MessageQueue(topic=shown, id=queue_id, permission=permission, broker=broker)
            )
            for queue_id in (range(topic.read_queue_nums) if in_order else (-1,))
        ]
        return pb.QueryAssignmentResponse(status=status(), assignments=assignments)

    def _broker(self, context: RpcContext, endpoints: pb.Endpoints) -> pb.Broker:
        broker_id = self._identity.broker_id
        return pb.Broker(
            name=self._identity.name, id=broker_id, endpoints=own_endpoints(context.own_host_port, endpoints)
        )


def asked_endpoints(asked: pb.Endpoints) -> pb.Endpoints | None:
    """A copy of what the client called its endpoints, without unknown fields, which an answer would repeat for every queue; None where
    they name no address. Raises RpcRefused.
    """
    if len(asked.addresses) > ADDRESSES_MAX:
        text = f"the endpoints have {len(asked.addresses)} addresses, at most {ADDRESSES_MAX} are allowed"
        raise RpcRefused(pb.ILLEGAL_ACCESS_POINT, text)
    if any(len(address.host) > ECHOED_CHARS_MAX for address in asked.addresses):
        text = f"an address of the endpoints has more than {ECHOED_CHARS_MAX} characters"
        raise RpcRefused(pb.ILLEGAL_ACCESS_POINT, text)
    if not asked.addresses or not asked.scheme:
        return None
    addresses = [pb.Address(host=address.host, port=address.port) for address in asked.addresses]
    return pb.Endpoints(scheme=asked.scheme, addresses=addresses)


def own_endpoints(own: tuple[str, int], asked: pb.Endpoints) -> pb.Endpoints:
    """Where the client reaches this broker: what it called the endpoint, which holds through port maps and TLS fronts.

    Of several addresses the one at which its connection was accepted; that one also where none fits. Raises RpcRefused.
    """
    copied = asked_endpoints(asked)
    addresses = [] if copied is None else list(copied.addresses)
    if copied is not None and len(addresses) == 1 and addresses[0].host:
        return copied
    host, port = own
    fitting = [address for address in addresses if address.port == port]
    if len(fitting) > 1:
        fitting = [address for address in fitting if address.host == host]
    if len(fitting) == 1:
        return pb.Endpoints(scheme=asked.scheme, addresses=fitting)
    scheme = pb.DOMAIN_NAME if not is_ip(host) else pb.IPv6 if ":" in host else pb.IPv4
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])


def route_queues(topic: TopicConfig, resource: pb.Resource, broker: pb.Broker) -> list[pb.MessageQueue]:
    """One broker's queues of a topic, as a route lists them."""
    reads = topic.read_queue_nums if topic.is_readable else 0
    writes = topic.write_queue_nums if topic.is_writable else 0
    both = min(reads, writes)
    permissions = [pb.READ] * (reads - both) + [pb.WRITE] * (writes - both) + [pb.READ_WRITE] * both
    if not permissions:
        permissions = [pb.NONE] * max(1, topic.read_queue_nums, topic.write_queue_nums)
    types = _ACCEPTED.get(topic.attributes.get(TYPE_ATTRIBUTE, NORMAL), (pb.MESSAGE_TYPE_UNSPECIFIED,))
    return [
        pb.MessageQueue(
            topic=resource, id=number, permission=permission, broker=broker, accept_message_types=types
        )
        for number, permission in enumerate(permissions)
    ]
