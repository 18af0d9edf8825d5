"""The shared parts of one broker, from which request handlers and features are created (call_parts.py, features.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.admission.overload import Overload
from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.delay.delivery_runs import DeliveryRuns
from aerobee.broker.delay.escaped import EscapedDeliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.fastpath.pop import MakePopRecords
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pull.pending_pulls import PendingPulls
from aerobee.broker.send.lmq import LmqEntries
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.send_duplicates import SendDuplicates
from aerobee.broker.send.unique_key import UniqueKeys
from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.peer_brokers import PeerBrokers
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.settled_decisions import SettledDecisions
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.clock import Clock
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.peer import Peer
from aerobee.store.files.disk import Disk
from aerobee.store.message_store import MessageStore

MaySend = Callable[[str, Peer, str], bool]  # principal, the peer, a topic


def any_client_may_send(principal: str, peer: Peer, topic: str) -> bool:
    """The check without access control: everything is allowed."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The shared parts of one broker. A Feature takes its dependencies from here and keeps nothing else."""

    store: MessageStore
    bounds: Bounds  # bounds on requests and memory of peers
    writer: MessageWriter
    lmqs: LmqEntries | None  # None: no LMQs here
    topics: TopicTable
    mappings: QueueMappings  # of static topics
    groups: GroupTable
    offsets: ConsumerOffsets
    consumers: ConsumerRegistry
    producers: ProducerRegistry
    locks: LockTable
    stats: BrokerStats
    schedule: Schedule
    escaped: EscapedDeliveries  # deliveries of an acting master
    deliveries: DeliveryRuns  # of due messages
    pending_pulls: PendingPulls
    ack: AckPolicy  # decides when appends are acknowledged
    overload: Overload
    unique_keys: UniqueKeys
    duplicates: SendDuplicates
    decisions: SettledDecisions  # of transactions
    unserved: UnservedKinds  # features that this master cannot serve now
    expressions: Expressions  # compiled SQL92 expressions, shared by all users
    filters: FilterTable
    live: LiveConfig
    identity: BrokerIdentity
    role: RoleState  # the present role of this broker
    client: RemotingClient  # client of NameServers and other brokers
    brokers: PeerBrokers  # other brokers by their names
    clock: Clock
    disk: Disk
    config_file: Callable[[str], ConfigFile]  # a file of the store's config directory, by name
    run_blocking: Callable[
        [Callable[[], None]], None
    ]  # in a thread, one after the other, failures are logged
    save_settings: (
        Callable[[Mapping[str, str]], Awaitable[None]] | None
    )  # into the configuration file, where there is one
    spawn: Callable[[Coroutine[Any, Any, None]], None]  # a task that ends with the broker
    make_pop_records: MakePopRecords | None = None  # the native writer, where available
    may_send: MaySend = any_client_may_send  # access control
    records: RecordAccess = field(
        default_factory=RecordAccess
    )  # access control for records that requests name by their offset
