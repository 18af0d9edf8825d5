"""Creates the RPCs that consume together, because they share the table of messages whose invisible time the broker
renews.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.ack_message import AckRpcs
from aerobee.broker.grpc.receive_message import ReceiveRpc
from aerobee.broker.grpc.renewals import Renewals
from aerobee.broker.grpc.rpc import Rpc, streaming, unary
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.ack_service import AckService
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.pop.pop_service import PopService
from aerobee.broker.send.send_back_service import SendBackService


@dataclass(frozen=True, slots=True, kw_only=True)
class PopServices:
    """The services that the consuming RPCs use."""

    pops: PopService
    acks: AckService
    send_backs: SendBackService
    lite: LiteService


def make_renewals(parts: BrokerParts, services: PopServices) -> Renewals:
    """Create the renewal of messages. It ends with the waiting calls of a broker that stops."""
    role, is_served = parts.role, parts.unserved.served(Pop.name)
    renewals = Renewals(
        acks=services.acks, clock=parts.clock, may_write=lambda: role.takes_writes and is_served()
    )
    parts.pending_pulls.on_release_all(renewals.stop)
    return renewals


def make_pop_rpcs(
    parts: BrokerParts, services: PopServices, *, renewals: Renewals, access: RpcAccess
) -> tuple[Rpc, ...]:
    """ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""
    receive = ReceiveRpc(
        pops=services.pops,
        acks=services.acks,
        send_backs=services.send_backs,
        lite=services.lite,
        groups=parts.groups,
        ack=parts.ack,
        unserved=parts.unserved,
        renewals=renewals,
        access=access,
        clock=parts.clock,
        broker_name=parts.identity.name,
    )
    acks = AckRpcs(
        acks=services.acks,
        send_backs=services.send_backs,
        lite=services.lite,
        store=parts.store,
        ack=parts.ack,
        unserved=parts.unserved,
        renewals=renewals,
        access=access,
        clock=parts.clock,
        broker_name=parts.identity.name,
    )
    return (
        streaming("ReceiveMessage", receive.receive),
        unary("AckMessage", acks.acknowledge, nested={}),
        unary("ChangeInvisibleDuration", acks.change),
        unary("ForwardMessageToDeadLetterQueue", acks.forward),
    )
