"""Connected consumers by group, and the subscriptions of each group.

Source: ConsumerManager, ConsumerGroupInfo (RocketMQ). All members of a group share one subscription table: a heartbeat
replaces it, the newer subVersion wins topic by topic, and topics that it does not contain are dropped. Consume type,
message model and start position are also those of the last heartbeat.

When a member joins or leaves a clustering group, the broker notifies all members immediately (member_notices.py), and
so does a change of the subscribed topics; otherwise they would find out at their next rebalance, up to 20 s later. A
member leaves by an unregister request, when its connection closes, or 120 s after its last heartbeat (checked every 10
s).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator

from aerobee.broker.consumer.client_ids import ClientIds, SharedId
from aerobee.broker.consumer.member_notices import MemberNotices
from aerobee.broker.consumer.subscription_conflict import Conflict, Wanted, conflict_between, wanted_of
from aerobee.broker.state.closed_peers import ClosedPeers
from aerobee.broker.state.producer_registry import CHANNEL_EXPIRY_S, ClientChannel
from aerobee.clock import Clock
from aerobee.log_throttle import LogThrottle
from aerobee.remoting.body.heartbeat import BROADCASTING, ConsumerData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

CONFLICTS_SAID_MAX = 10_000

SubscriptionWatcher = Callable[[str, Iterable[SubscriptionData] | None], None]


class ConsumerGroup:
    """One consumer group that has a member, or whose first member is joining."""

    __slots__ = (
        "channels",
        "consume_from_where",
        "consume_type",
        "fingerprint",
        "ids",
        "message_model",
        "name",
        "refused",
        "subscriptions",
        "wanted",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.channels: dict[Peer, ClientChannel] = {}
        self.ids = ClientIds(name)
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.consume_type = "CONSUME_PASSIVELY"
        self.message_model = "CLUSTERING"
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"
        self.fingerprint: int | None = None  # from the last heartbeat with subscriptions
        self.wanted: dict[Peer, Wanted] = {}  # subscriptions of each member
        self.refused: dict[Peer, Conflict] = {}  # the client that was refused because of other subscriptions

    def subscription(self, topic: str) -> SubscriptionData | None:
        """The group's subscription to the topic; None when no member subscribed to it."""
        return self.subscriptions.get(topic)

    def client_ids(self) -> list[str]:
        """Ids of the members. A client that reconnected may still have its old connection; its id is listed once."""
        return list(dict.fromkeys(channel.client_id for channel in self.channels.values()))

    def conflict_of(self, client_id: str, wanted: Wanted) -> Conflict | None:
        """Whether a client with the subscriptions `wanted` differs from a member."""
        if all(other == wanted for other in self.wanted.values()):
            return None
        others = [
            (channel.client_id, self.wanted[peer])
            for peer, channel in self.channels.items()
            if peer in self.wanted and peer.is_open
        ]
        return conflict_between(self.name, client_id, wanted, others)

    @property
    def conflicts(self) -> list[Conflict]:
        """Members that differ from the first one, and the client that was refused for that."""
        found = [*self.refused.values()]
        members = [
            (channel.client_id, self.wanted[peer])
            for peer, channel in self.channels.items()
            if peer in self.wanted
        ]
        for client_id, wanted in members[1:]:
            conflict = conflict_between(self.name, client_id, wanted, members[:1])
            if conflict is not None:
                found.append(conflict)
        return found

    def channel_of(self, client_id: str) -> ClientChannel | None:
        """The newest open connection of a member."""
        for channel in reversed(self.channels.values()):
            if channel.client_id == client_id and channel.peer.is_open:
                return channel
        return None


class ConsumerRegistry:
    """Consumer groups and their members. Plain calls; belongs to the broker's event loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        may_notify: Callable[[str], bool] = lambda group: True,
    ) -> None:
        """`may_notify` says whether a group's members are notified of changes (notifyConsumerIdsChangedEnable).

        `call_soon` runs a function after what runs now.
        """
        self._clock = clock
        self._may_notify = may_notify
        self._notices = MemberNotices(members_of=self._notified, call_soon=call_soon)
        self._groups: dict[str, ConsumerGroup] = {}
        self._closed = ClosedPeers(self._leave_one, call_soon)
        self._refused_of: dict[Peer, set[str]] = {}
        self._groups_of: dict[Peer, set[str]] = {}
        self._member_count = 0
        self._watchers: list[Callable[[], None]] = []
        self._subscription_watchers: list[SubscriptionWatcher] = []
        self._conflicts_said: set[tuple[str, str, str]] = set()  # group, client, topic: each is logged once
        self._turn = itertools.count()
        self._id_shared = LogThrottle(log, clock.monotonic)

    def on_subscriptions(self, watcher: SubscriptionWatcher) -> None:
        """Register a callback: (group, subscriptions) after each heartbeat with subscriptions; None when the last
        member of a group leaves."""
        self._subscription_watchers.append(watcher)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register a callback for changes of a group's message model or subscriptions, and for the end of a group."""
        self._watchers.append(callback)

    # --- membership

    def register(
        self,
        data: ConsumerData,
        peer: Peer,
        client_id: str,
        *,
        language: int,
        version: int,
        with_subscriptions: bool = True,
    ) -> bool:
        """Apply a heartbeat of one group; notify the members of a change. Returns whether the group changed."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        is_other_model = group.message_model != data.message_model
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        joined = self._see(group, peer, client_id, language, version)
        group.refused.pop(peer, None)
        before = dict(group.subscriptions)
        if with_subscriptions:
            group.ids.subscribed(peer, data.subscription_data_set)
        changed = with_subscriptions and _replace_subscriptions(group, data.subscription_data_set)
        if with_subscriptions:
            group.wanted[peer] = wanted_of(data.subscription_data_set)
            self._warn_of_conflict(group, group.conflict_of(client_id, group.wanted[peer]))
            for watcher in self._subscription_watchers:
                watcher(group.name, data.subscription_data_set)
        # A newer version of a known subscription does not notify members, but matters for pulls.
        if is_other_model or group.subscriptions != before:
            self._changed()
        if joined or changed:
            self._notices.changed(group.name)
        return joined or changed

    def refuse(
        self, data: ConsumerData, peer: Peer, client_id: str, *, with_subscriptions: bool = True
    ) -> Conflict | None:
        """Record that a client may not join because its subscriptions differ from the members'; None when it may."""
        group = self._groups.get(data.group_name)
        if group is None:
            return None
        if not with_subscriptions:  # a refusal stays until the client's next heartbeat with subscriptions
            return group.refused.get(peer)
        conflict = group.conflict_of(client_id, wanted_of(data.subscription_data_set))
        if conflict is None:
            return None
        refused_of = self._refused_of.get(peer)
        if refused_of is None:
            refused_of = self._refused_of[peer] = set()
            peer.on_close(self._forget_refused)
        refused_of.add(data.group_name)
        group.refused[peer] = conflict
        self._warn_of_conflict(group, conflict)
        return conflict

    def _forget_refused(self, peer: Peer) -> None:
        for group_name in self._refused_of.pop(peer, ()):
            group = self._groups.get(group_name)
            if group is not None:
                group.refused.pop(peer, None)

    def _warn_of_conflict(self, group: ConsumerGroup, conflict: Conflict | None) -> None:
        if conflict is None:
            return
        key = (group.name, conflict.client_id, conflict.topic)
        if key not in self._conflicts_said:
            if len(self._conflicts_said) >= CONFLICTS_SAID_MAX:
                self._conflicts_said.clear()
            self._conflicts_said.add(key)
            log.warning("%s", conflict)

    def unregister(self, group_name: str, peer: Peer) -> None:
        """The member behind this connection leaves; the others are notified."""
        group = self._groups.get(group_name)
        if group is not None:
            group.wanted.pop(peer, None)
            group.refused.pop(peer, None)
        if group is None or group.channels.pop(peer, None) is None:
            return
        self._member_count -= 1
        group.ids.left(peer)
        groups = self._groups_of.get(peer)
        if groups is not None:
            groups.discard(group_name)
        if not group.channels:
            # With its last member goes the subscription: a late pull is answered SUBSCRIPTION_NOT_EXIST.
            del self._groups[group_name]
            for watcher in self._subscription_watchers:
                watcher(group_name, None)
            self._changed()
        else:
            self._notices.changed(group.name)

    def connection_closed(self, peer: Peer) -> None:
        """Remove every member of a connection; in slices when it has very many groups."""
        self._closed.add(peer)

    def _leave_one(self, peer: Peer) -> bool:
        groups = self._groups_of.get(peer)
        if not groups:
            self._groups_of.pop(peer, None)
            return False
        self.unregister(groups.pop(), peer)
        return True

    def scan(self, expiry_s: float = CHANNEL_EXPIRY_S) -> list[tuple[Peer, str]]:
        """Remove members without a heartbeat for `expiry_s`. Returns their connections and why, for close_silent_clients()."""
        now = self._clock.monotonic()
        expired: list[tuple[Peer, str]] = []
        for group in list(self._groups.values()):
            for channel in list(group.channels.values()):
                if now - channel.seen > expiry_s:
                    log.info(
                        "consumer %s of group %s: no heartbeat for %.0f s",
                        channel.client_id,
                        group.name,
                        expiry_s,
                    )
                    self.unregister(group.name, channel.peer)
                    why = f"consumer {channel.client_id} of {group.name}: no heartbeat for {expiry_s:.0f} s"
                    expired.append((channel.peer, why))
        return expired

    # --- reading

    def group(self, name: str) -> ConsumerGroup | None:
        """Return the group, or None when none of its members is connected."""
        return self._groups.get(name)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """As ConsumerGroup.subscription; also None for a group without members."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    @property
    def member_count(self) -> int:
        """Number of members of all groups; a client counts once per group."""
        return self._member_count

    def size_of(self, group: str) -> int:
        """How many members a group has."""
        found = self._groups.get(group)
        return 0 if found is None else len(found.channels)

    def groups_of(self, peer: Peer) -> set[str]:
        """Names of the groups that a peer is a member of."""
        return self._groups_of.get(peer, set())

    def groups(self) -> list[ConsumerGroup]:
        """The groups that have members now."""
        return list(self._groups.values())

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """Names of the connected groups that subscribe to a topic."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    def fingerprint_changed(self, group_name: str, fingerprint: int) -> bool:
        """Compare a heartbeat's fingerprint (V2) with the group's last one, and remember it.

        A group's first fingerprint is not a change. The caller handles a heartbeat without subscriptions whose
        fingerprint is unknown.
        """
        group = self._groups.get(group_name)
        if group is None:
            return False
        before, group.fingerprint = group.fingerprint, fingerprint
        return before is not None and before != fingerprint

    def member_ids(self, group_name: str, peer: Peer) -> list[str]:
        """The client ids of a group for one member: a member whose id another client owns does not find its own id."""
        group = self._groups.get(group_name)
        if group is None:
            return []
        self._shows_life(group, peer)
        return group.ids.as_seen_by(peer, group.client_ids())

    def shared_ids(self) -> Iterator[SharedId]:
        """Client ids that several connected members of one group share."""
        for group in self._groups.values():
            for client_id in group.ids.shared:
                yield group.ids.shared_id(client_id)

    # --- helpers

    def _shows_life(self, group: ConsumerGroup, peer: Peer) -> None:
        """Notify the members when this event shows that two clients share an id: both would take the queues of that
        id."""
        if group.message_model == BROADCASTING:  # every client takes all queues
            return
        shared = group.ids.alive(peer, next(self._turn))
        if shared is not None:
            self._id_shared.warn(f"{shared.group} {shared.client_id}", "%s", shared)
            self._notices.changed(group.name)

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _see(self, group: ConsumerGroup, peer: Peer, client_id: str, language: int, version: int) -> bool:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        channel = group.channels.get(peer)
        if channel is not None and channel.client_id == client_id:
            channel.language, channel.version, channel.seen, channel.seen_ms = language, version, now, now_ms
            self._shows_life(group, peer)
            return False
        self._member_count += channel is None
        group.ids.joined(client_id, peer, next(self._turn))
        group.channels[peer] = ClientChannel(peer, client_id, language, version, now, now_ms)
        groups = self._groups_of.get(peer)
        if groups is None:
            groups = self._groups_of[peer] = set()
            peer.on_close(self.connection_closed)
        groups.add(group.name)
        return True

    def _notified(self, group_name: str) -> list[Peer]:
        """The connections to notify of a change of the group's members."""
        group = self._groups.get(group_name)
        # Members of a broadcasting group each take all queues, so no member needs to know the others.
        if group is None or group.message_model == BROADCASTING or not self._may_notify(group_name):
            return []
        return list(group.channels)


def _replace_subscriptions(group: ConsumerGroup, subscriptions: Iterable[SubscriptionData]) -> bool:
    """Apply a heartbeat's subscriptions; return whether the set of topics changed."""
    changed = False
    named = set()
    for subscription in subscriptions:
        named.add(subscription.topic)
        known = group.subscriptions.get(subscription.topic)
        if known is None:
            changed = True
        elif subscription.sub_version <= known.sub_version:
            continue
        group.subscriptions[subscription.topic] = subscription
    for topic in [topic for topic in group.subscriptions if topic not in named]:
        del group.subscriptions[topic]
        changed = True
    return changed
