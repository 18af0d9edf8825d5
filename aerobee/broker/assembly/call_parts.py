"""Request handlers of every broker, created from its shared parts. Features add theirs (features.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aerobee.broker.admin.broker import AdminBrokerCalls
from aerobee.broker.admin.consume_stats import ConsumeStatsCalls
from aerobee.broker.admin.group import AdminGroupCalls
from aerobee.broker.admin.offset import AdminOffsetCalls
from aerobee.broker.admin.relay import RelayCalls
from aerobee.broker.admin.replication import SlaveCalls
from aerobee.broker.admin.runtime_info import RuntimeInfo
from aerobee.broker.admin.stats import AdminStatsCalls
from aerobee.broker.admin.topic import AdminTopicCalls
from aerobee.broker.assembly.services import Services
from aerobee.broker.consumer.assignment import AssignmentCalls
from aerobee.broker.consumer.lock_calls import LockCalls
from aerobee.broker.consumer.offset_calls import OffsetCalls
from aerobee.broker.consumer.request_mode import FILE_NAME as REQUEST_MODE_FILE
from aerobee.broker.consumer.request_mode import RequestModes
from aerobee.broker.membership.heartbeat import HeartbeatCalls
from aerobee.broker.membership.query import QueryCalls
from aerobee.broker.membership.registration import Registration
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pull.pull_calls import PullCalls
from aerobee.broker.replication.replication import Replication
from aerobee.broker.send.send_back import SendBackCalls
from aerobee.broker.send.send_calls import SendCalls
from aerobee.broker.state.topic_queues import TopicQueues
from aerobee.broker.static_topic.static_topic_calls import StaticTopicCalls
from aerobee.remoting.peer import Handler


class CallPart(Protocol):
    """A part that serves requests."""

    def handlers(self) -> Mapping[int, Handler]:
        """Request code -> handler, for the requests that this part serves."""


def send_calls(parts: BrokerParts, services: Services) -> SendCalls:
    """Producers' sends."""
    return SendCalls(
        service=services.sends,
        new_topics=services.new_topics,
        live=parts.live,
        identity=parts.identity,
        ack=parts.ack,
        epoch=lambda: parts.role.epoch,
    )


def queue_calls(parts: BrokerParts, services: Services, pulls: PullCalls) -> tuple[CallPart, ...]:
    """Client requests for one queue: sends, pulls, offsets; the last one knows the queues of static topics."""
    sends = send_calls(parts, services)
    offsets = OffsetCalls(services.offsets)
    static = StaticTopicCalls(
        mappings=parts.mappings,
        topics=parts.topics,
        sends=sends,
        pulls=pulls,
        offsets=offsets,
        pending_pulls=parts.pending_pulls,
        brokers=parts.brokers,
        live=parts.live,
        identity=parts.identity,
    )
    return pulls, sends, offsets, static


def pull_calls(parts: BrokerParts, services: Services) -> PullCalls:
    """Pulls."""
    return PullCalls(service=services.pulls, pending_pulls=parts.pending_pulls, spawn=parts.spawn)


def client_calls(parts: BrokerParts, services: Services, registration: Registration) -> tuple[CallPart, ...]:
    """Client requests other than sends, pulls and offsets."""
    return (
        SendBackCalls(service=services.send_backs, ack=parts.ack, records=parts.records),
        HeartbeatCalls(
            consumers=parts.consumers,
            producers=parts.producers,
            groups=parts.groups,
            topics=parts.topics,
            live=parts.live,
            expressions=parts.expressions,
            bounds=parts.bounds,
            registered=registration.settled,
        ),
        QueryCalls(store=parts.store, records=parts.records),
        LockCalls(locks=parts.locks),
    )


def request_modes(parts: BrokerParts) -> RequestModes:
    """Load the request modes (pull or POP) from their file. Raises StoreError."""
    modes = RequestModes(live=parts.live, file=parts.config_file(REQUEST_MODE_FILE))
    modes.load()
    return modes


def replication_calls(parts: BrokerParts, replication: Replication) -> tuple[SlaveCalls, ...]:
    """Requests of slaves other than log replication, and of tools about slaves."""
    return (
        SlaveCalls(
            offsets=parts.offsets,
            schedule=parts.schedule,
            filters=parts.filters,
            store=parts.store,
            identity=parts.identity,
            state=replication.state,
            clock=parts.clock,
            unserved=parts.unserved,
            decisions=parts.decisions,
        ),
    )


def admin_calls(
    parts: BrokerParts, registration: Registration, info: RuntimeInfo, modes: RequestModes
) -> tuple[CallPart, ...]:
    """Requests of mqadmin and consoles."""
    return (
        AdminTopicCalls(
            topics=parts.topics,
            mappings=parts.mappings,
            offsets=parts.offsets,
            consumers=parts.consumers,
            locks=parts.locks,
            stats=parts.stats,
            store=parts.store,
            live=parts.live,
            identity=parts.identity,
            role=parts.role,
            clock=parts.clock,
        ),
        AdminGroupCalls(
            groups=parts.groups,
            topics=parts.topics,
            offsets=parts.offsets,
            consumers=parts.consumers,
            producers=parts.producers,
            stats=parts.stats,
            clock=parts.clock,
        ),
        ConsumeStatsCalls(
            expressions=parts.expressions,
            live=parts.live,
            groups=parts.groups,
            topics=parts.topics,
            mappings=parts.mappings,
            offsets=parts.offsets,
            consumers=parts.consumers,
            stats=parts.stats,
            store=parts.store,
            identity=parts.identity,
            clock=parts.clock,
        ),
        AdminOffsetCalls(
            groups=parts.groups,
            topics=parts.topics,
            offsets=parts.offsets,
            consumers=parts.consumers,
            store=parts.store,
            live=parts.live,
            identity=parts.identity,
        ),
        RelayCalls(
            consumers=parts.consumers,
            groups=parts.groups,
            topics=parts.topics,
            store=parts.store,
            identity=parts.identity,
            records=parts.records,
        ),
        AdminBrokerCalls(
            live=parts.live,
            store=parts.store,
            info=info,
            identity=parts.identity,
            clock=parts.clock,
            save=parts.save_settings,
        ),
        AdminStatsCalls(stats=parts.stats),
        AssignmentCalls(
            consumers=parts.consumers,
            live=parts.live,
            modes=modes,
            queues_of=TopicQueues(
                client=parts.client,
                nameservers=lambda: registration.nameservers,
                topics=parts.topics,
                identity=parts.identity,
                clock=parts.clock,
            ),
        ),
    )
