"""The services of a broker, independent of the protocol: remoting and gRPC encode their results as replies.

docs/services.md lists them with their methods. Remoting's handlers encode their outcomes; another protocol takes them from
`Broker.services`.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.consumer.offset_service import OffsetService
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.ack_service import AckService
from aerobee.broker.pop.notification_service import NotificationService
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.pop.pop_service import PopService
from aerobee.broker.pull.pull_service import PullService
from aerobee.broker.send.new_topics import NewTopics
from aerobee.broker.send.send_back_service import SendBackService
from aerobee.broker.send.send_service import SendService
from aerobee.broker.state.unserved import UnservedKinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of one broker, available after its start. They belong to its event loop."""

    sends: SendService
    new_topics: NewTopics  # creates the topic of a send if it does not exist
    send_backs: SendBackService
    offsets: OffsetService
    pulls: PullService
    pops: PopService
    acks: AckService
    notifications: NotificationService
    lite: LiteService
    ack: AckPolicy  # decides when a stored message is acknowledged
    unserved: UnservedKinds  # features that this master cannot serve now


def make_services(parts: BrokerParts, pop: Pop, lite: LiteService) -> Services:
    """Make those that no feature has."""
    return Services(
        sends=_sends(parts),
        new_topics=NewTopics(topics=parts.topics, groups=parts.groups, live=parts.live),
        send_backs=_send_backs(parts),
        offsets=OffsetService(
            offsets=parts.offsets, groups=parts.groups, topics=parts.topics, store=parts.store
        ),
        pulls=_pulls(parts),
        pops=pop.pops,
        acks=pop.acks,
        notifications=pop.notifications,
        lite=lite,
        ack=parts.ack,
        unserved=parts.unserved,
    )


def _sends(parts: BrokerParts) -> SendService:
    return SendService(
        store=parts.store,
        writer=parts.writer,
        topics=parts.topics,
        groups=parts.groups,
        locks=parts.locks,
        stats=parts.stats,
        live=parts.live,
        identity=parts.identity,
        role=parts.role,
        shortage=lambda: parts.ack.shortage,
        overload=parts.overload,
        unique_keys=parts.unique_keys,
        duplicates=parts.duplicates,
        clock=parts.clock,
    )


def _send_backs(parts: BrokerParts) -> SendBackService:
    return SendBackService(
        store=parts.store,
        writer=parts.writer,
        topics=parts.topics,
        groups=parts.groups,
        stats=parts.stats,
        live=parts.live,
        identity=parts.identity,
        role=parts.role,
    )


def _pulls(parts: BrokerParts) -> PullService:
    return PullService(
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        consumers=parts.consumers,
        offsets=parts.offsets,
        stats=parts.stats,
        pending_pulls=parts.pending_pulls,
        expressions=parts.expressions,
        filters=parts.filters,
        live=parts.live,
        identity=parts.identity,
        role=parts.role,
        clock=parts.clock,
    )
