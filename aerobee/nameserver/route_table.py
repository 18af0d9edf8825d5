"""Routes of topics, and live brokers. Core: no I/O, the time is an argument.

    topics     topic -> broker name -> TopicQueues
    groups     broker name -> BrokerGroup (cluster, broker id -> BrokerAddresses, zone)
    clusters   cluster -> broker names
    live       (cluster, broker address) -> LiveBroker (last sign of life, data version, connection)
    mappings   topic -> broker name -> QueueMappingInfo, of static topics

Invariants: a broker name in `clusters` is in `groups`, a group has at least one member, a broker name in
`topics` is in `groups`, and a topic in `topics` has at least one broker. A mapping is removed with the
topic's queues at its broker (RocketMQ keeps it for ever, so it would treat a recreated topic as static).

Source: RouteInfoManager (RocketMQ). Differences: an unregistration takes effect immediately instead of in a
batch; with `deleteTopicWithBrokerRegistration` a body with a single topic deletes nothing, because it is an
incremental update.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.queue_mapping import QueueMappingInfo
from aerobee.remoting.body.topic_config import PERM_WRITE
from aerobee.remoting.protocol import MASTER_ID

PERM_READ_WRITE = 6
TOPIC_FLAG_UNIT = 1
TOPIC_FLAG_UNIT_SUB = 2
# A broker whose heartbeats carry no time-out expires two minutes after the last one.
BROKER_TIMEOUT_MS = 120_000
# Brokers of an acting-master group request this topic's route to learn their group; route() never rewrites
# it.
SYNC_BROKER_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """One topic's queues on one broker name."""

    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The four fields that identify a broker in its requests."""

    cluster: str
    name: str
    address: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One registration, both body forms decoded. `enable_acting_master` is None when the broker is older than 5.0."""

    identity: BrokerIdentity
    ha_address: str = ""
    heartbeat_timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    zone: str | None = None
    listener_addresses: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, TopicQueues] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)
    filter_servers: tuple[str, ...] = ()
    # queue mappings of its static topics
    mappings: Mapping[str, QueueMappingInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MinBrokerChange:
    """The lowest broker id of an acting-master group changed; `recipients` are the addresses to notify."""

    recipients: tuple[str, ...]
    min_broker_id: int
    min_broker_address: str
    offline_address: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """`accepted` False: the update is incremental, from a broker that never sent its whole table."""

    accepted: bool = True
    master_address: str = ""
    ha_address: str = ""
    changes: tuple[MinBrokerChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """One broker process: its plain address, and the address of each named listener."""

    address: str
    listener_addresses: Mapping[str, str] = field(default_factory=dict)

    def address_for(self, listener: str) -> str:
        return self.listener_addresses.get(listener, self.address)


@dataclass(slots=True)
class BrokerGroup:
    """All brokers of one name: the master and its slaves."""

    cluster: str
    name: str
    members: dict[int, Member] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone: str | None = None

    def min_id(self) -> int:
        return min(self.members)


@dataclass(slots=True)
class LiveBroker:
    """The last heartbeat of one broker process, by the monotonic clock. `connection` is the object that the
    I/O layer registered.
    """

    identity: BrokerIdentity
    last_seen_ms: int
    timeout_ms: int
    version: DataVersion
    ha_address: str
    connection: Hashable


@dataclass(frozen=True, slots=True)
class GroupView:
    """A broker group as one client sees it: the addresses for the listener of its connection, by ascending id."""

    cluster: str
    name: str
    addresses: Mapping[int, str]
    enable_acting_master: bool = False
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class RouteView:
    """A topic's route: broker groups, (broker name, queues) pairs, filter servers by broker address."""

    groups: tuple[GroupView, ...]
    queues: tuple[tuple[str, TopicQueues], ...]
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mappings: Mapping[str, QueueMappingInfo] = field(
        default_factory=dict
    )  # by broker name, of a static topic


class RouteTable:
    """The tables above, and the rules by which registrations and lost brokers change them."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, TopicQueues]] = {}
        self.groups: dict[str, BrokerGroup] = {}
        self.clusters: dict[str, dict[str, None]] = {}
        self.live: dict[tuple[str, str], LiveBroker] = {}
        self._filter_servers: dict[tuple[str, str], tuple[str, ...]] = {}
        self._mappings: dict[str, dict[str, QueueMappingInfo]] = {}
        self._topic_counts: dict[str, int] = {}  # broker name -> number of its topics
        self.entry_count = 0  # number of pairs of topic and broker name

    # Brokers come and go.

    def register(
        self,
        registration: Registration,
        *,
        now_ms: int,
        connection: Hashable = None,
        delete_missing_topics: bool = False,
    ) -> RegisterResult:
        """Apply one registration. Source: RouteInfoManager.registerBroker."""
        broker = registration.identity
        group = self.groups.get(broker.name)
        members: dict[int, Member] = group.members if group else {}
        previous_min = min(members, default=None)
        # One address, one id: a slave that became master leaves its old id.
        kept = {i: m for i, m in members.items() if m.address != broker.address or i == broker.broker_id}
        current = kept.get(broker.broker_id)
        if current is not None and current.address != broker.address:
            rival = self.live.get((broker.cluster, current.address))
            if rival is not None and rival.version.state_version > registration.version.state_version:
                # A deposed master that still believes in its old term must not take the id back.
                self.live.pop((broker.cluster, broker.address), None)
                self._replace_members(group, kept)
                return RegisterResult()
        if broker.broker_id not in kept and len(registration.topics) == 1:
            self._replace_members(group, kept)
            return RegisterResult(accepted=False)

        if group is None:
            group = self.groups[broker.name] = BrokerGroup(broker.cluster, broker.name)
        self.clusters.setdefault(broker.cluster, {})[broker.name] = None
        group.enable_acting_master = bool(registration.enable_acting_master)
        group.zone = registration.zone
        group.members = kept
        group.members[broker.broker_id] = Member(broker.address, dict(registration.listener_addresses))
        self._apply_topics(registration, group, first=current is None, delete_missing=delete_missing_topics)

        key = (broker.cluster, broker.address)
        self.live[key] = LiveBroker(
            identity=broker,
            last_seen_ms=now_ms,
            timeout_ms=registration.heartbeat_timeout_ms or BROKER_TIMEOUT_MS,
            version=registration.version,
            ha_address=registration.ha_address,
            connection=connection,
        )
        if registration.filter_servers:
            self._filter_servers[key] = registration.filter_servers
        else:
            self._filter_servers.pop(key, None)

        changes: tuple[MinBrokerChange, ...] = ()
        if group.enable_acting_master and previous_min is not None and group.min_id() != previous_min:
            changes = (self._min_broker_change(group, offline_address=None),)
        master = group.members.get(MASTER_ID)
        if broker.broker_id == MASTER_ID or master is None:
            return RegisterResult(changes=changes)
        live_master = self.live.get((broker.cluster, master.address))
        if live_master is None:
            return RegisterResult(changes=changes)
        return RegisterResult(True, master.address, live_master.ha_address, changes)

    def unregister(self, broker: BrokerIdentity) -> tuple[MinBrokerChange, ...]:
        """Remove one broker process. Also remove its broker name and queues after its last process, and the
        cluster after its last broker name.
        """
        key = (broker.cluster, broker.address)
        self.live.pop(key, None)
        self._filter_servers.pop(key, None)
        group = self.groups.get(broker.name)
        if group is None:
            return ()
        left = {i: m for i, m in group.members.items() if m.address != broker.address}
        if len(left) == len(group.members):
            return ()
        previous_min = group.min_id()
        group.members = left
        if not left:
            self._forget_group(group.name)
            return ()
        if group.enable_acting_master and MASTER_ID not in left:
            self._change_perm(group.name, clear=PERM_WRITE)
        if group.enable_acting_master and group.min_id() != previous_min:
            return (self._min_broker_change(group, offline_address=broker.address),)
        return ()

    def heartbeat(self, cluster: str, address: str, *, now_ms: int) -> bool:
        """Note a heartbeat; False when the broker is not registered."""
        live = self.live.get((cluster, address))
        if live is None:
            return False
        live.last_seen_ms = now_ms
        return True

    def connection_closed(self, connection: Hashable) -> tuple[MinBrokerChange, ...]:
        """Remove every broker whose last registration came over this connection."""
        dead = [live.identity for live in self.live.values() if live.connection == connection]
        return tuple(change for broker in dead for change in self.unregister(broker))

    def expired(self, *, now_ms: int) -> list[LiveBroker]:
        """Return the brokers whose time-out has passed; the caller closes their connections and unregisters."""
        return [live for live in self.live.values() if now_ms - live.last_seen_ms > live.timeout_ms]

    def version_of(self, cluster: str, address: str) -> DataVersion | None:
        """The data version of a broker's last registration."""
        live = self.live.get((cluster, address))
        return live.version if live else None

    # The resulting number, for bounds.

    def topic_count(self, broker_name: str) -> int:
        """Number of topics of a broker name."""
        return self._topic_counts.get(broker_name, 0)

    def new_topic_count(self, broker_name: str, topics: Iterable[str]) -> int:
        """Number of `topics` that are new for the broker name."""
        return sum(broker_name not in self.topics.get(topic, ()) for topic in topics)

    def is_member(self, broker: BrokerIdentity) -> bool:
        """Whether this process is registered under its broker name, with any id."""
        group = self.groups.get(broker.name)
        return group is not None and any(m.address == broker.address for m in group.members.values())

    def member_count(self, broker_name: str) -> int:
        """Number of processes of a broker name."""
        group = self.groups.get(broker_name)
        return len(group.members) if group is not None else 0

    # Questions.

    def route(
        self, topic: str, *, listener: str = "", support_acting_master: bool = False
    ) -> RouteView | None:
        """The topic's route, or None when no broker has it. Source: pickupTopicRouteData."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        groups = [self.groups[name] for name in queues]
        acting = support_acting_master and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX)
        views = tuple(
            self._view(
                group,
                listener,
                # The group's acting master has the queues without the write bit: the route shows it as id 0,
                # so that clients that look for id 0 continue to read.
                acting=acting and not queues[group.name].perm & PERM_WRITE,
            )
            for group in groups
        )
        filters = {
            member.address: servers
            for group in groups
            for member in group.members.values()
            if (servers := self._filter_servers.get((group.cluster, member.address)))
        }
        return RouteView(views, tuple(queues.items()), filters, self._mappings.get(topic, {}))

    def group_views(self, *, listener: str = "") -> list[GroupView]:
        """Every broker group, in the order of registration."""
        return [self._view(group, listener) for group in self.groups.values()]

    def member_addresses(self, broker_name: str) -> dict[int, str]:
        """Broker id -> address of one group, empty when the name is unknown."""
        group = self.groups.get(broker_name)
        return {i: group.members[i].address for i in sorted(group.members)} if group else {}

    def topic_names(self) -> list[str]:
        return list(self.topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        brokers = self.clusters.get(cluster, {})
        return [topic for topic, queues in self.topics.items() if any(name in brokers for name in queues)]

    def topics_with_flags(self, *, unit: bool | None, unit_sub: bool | None) -> list[str]:
        """Topics by the flags of their first broker; None: any value."""
        found = []
        for topic, queues in self.topics.items():
            flags = next(iter(queues.values())).topic_sys_flag
            unit_matches = unit is None or unit == bool(flags & TOPIC_FLAG_UNIT)
            if unit_matches and (unit_sub is None or unit_sub == bool(flags & TOPIC_FLAG_UNIT_SUB)):
                found.append(topic)
        return found

    # Administration.

    def wipe_write_perm(self, broker_name: str) -> int:
        """Remove the write bit from every topic of a broker name; returns the number of its topics."""
        return self._change_perm(broker_name, clear=PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make every topic of a broker name readable and writable; returns the number of its topics."""
        return self._change_perm(broker_name, set_to=PERM_READ_WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, from all clusters or from the named one. A later registration of a broker adds it again."""
        queues = self.topics.get(topic)
        if queues is None:
            return
        brokers: Iterable[str] = queues if not cluster else self.clusters.get(cluster, {})
        for name in [name for name in brokers if name in queues]:
            self._drop_queues(topic, name)

    def register_topic(self, topic: str, queues: Mapping[str, TopicQueues]) -> list[str]:
        """Add a topic on behalf of an administrator. Returns the unknown broker names, and then changes nothing."""
        unknown = [name for name in queues if name not in self.groups]
        if not unknown and queues:
            for name, each in queues.items():
                self._set_queues(topic, name, each)
        return unknown

    # Helpers.

    def _apply_topics(
        self, registration: Registration, group: BrokerGroup, *, first: bool, delete_missing: bool
    ) -> None:
        broker = registration.identity
        is_master = broker.broker_id == MASTER_ID
        is_prime_slave = (
            not is_master
            and registration.enable_acting_master is not None
            and broker.broker_id == group.min_id()
        )
        if not (is_master or is_prime_slave):
            return
        if delete_missing and len(registration.topics) > 1:
            for topic in [t for t, queues in self.topics.items() if group.name in queues]:
                if topic not in registration.topics:
                    self._drop_queues(topic, group.name)
        changed = first or self.version_of(broker.cluster, broker.address) != registration.version
        for topic, queues in registration.topics.items():
            known = self.topics.get(topic)
            if not changed and known is not None and group.name in known:
                continue
            if is_prime_slave and group.enable_acting_master:
                queues = replace(queues, perm=queues.perm & ~PERM_WRITE)
            self._set_queues(topic, group.name, queues)
            mapping = registration.mappings.get(topic)
            if mapping is not None:
                self._mappings.setdefault(topic, {})[group.name] = mapping
            else:
                self._drop_mapping(topic, group.name)

    def _replace_members(self, group: BrokerGroup | None, members: dict[int, Member]) -> None:
        if group is not None:
            group.members = members
            if not members:
                self._forget_group(group.name)

    def _forget_group(self, name: str) -> None:
        del self.groups[name]
        for cluster in [c for c, names in self.clusters.items() if name in names]:
            del self.clusters[cluster][name]
            if not self.clusters[cluster]:
                del self.clusters[cluster]
        for topic in [t for t, queues in self.topics.items() if name in queues]:
            self._drop_queues(topic, name)

    def _set_queues(self, topic: str, broker_name: str, queues: TopicQueues) -> None:
        brokers = self.topics.setdefault(topic, {})
        if broker_name not in brokers:
            self._topic_counts[broker_name] = self._topic_counts.get(broker_name, 0) + 1
            self.entry_count += 1
        brokers[broker_name] = queues

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self.topics[topic]
        del queues[broker_name]
        self.entry_count -= 1
        self._topic_counts[broker_name] -= 1
        if not self._topic_counts[broker_name]:
            del self._topic_counts[broker_name]
        if not queues:
            del self.topics[topic]
        self._drop_mapping(topic, broker_name)

    def _drop_mapping(self, topic: str, broker_name: str) -> None:
        mappings = self._mappings.get(topic)
        if mappings is not None:
            mappings.pop(broker_name, None)
            if not mappings:
                del self._mappings[topic]

    def _change_perm(self, broker_name: str, *, clear: int = 0, set_to: int | None = None) -> int:
        count = 0
        for queues in self.topics.values():
            entry = queues.get(broker_name)
            if entry is not None:
                perm = set_to if set_to is not None else entry.perm & ~clear
                queues[broker_name] = replace(entry, perm=perm)
                count += 1
        return count

    def _view(self, group: BrokerGroup, listener: str, *, acting: bool = False) -> GroupView:
        addresses = {i: group.members[i].address_for(listener) for i in sorted(group.members)}
        if acting and group.enable_acting_master and MASTER_ID not in addresses:
            prime = next(iter(addresses))
            addresses = {MASTER_ID: addresses.pop(prime), **addresses}
        return GroupView(group.cluster, group.name, addresses, group.enable_acting_master, group.zone)

    def _min_broker_change(self, group: BrokerGroup, *, offline_address: str | None) -> MinBrokerChange:
        minimum = group.min_id()
        address = group.members[minimum].address
        live = self.live.get((group.cluster, address))
        recipients = tuple(
            member.address
            for broker_id, member in sorted(group.members.items())
            if offline_address is not None or len(group.members) == 1 or broker_id != minimum
        )
        # After the loss of a broker the notice has no replication address: the remaining broker does not
        # serve replication yet.
        ha_address = live.ha_address if live is not None and offline_address is None else None
        return MinBrokerChange(recipients, minimum, address, offline_address, ha_address)
