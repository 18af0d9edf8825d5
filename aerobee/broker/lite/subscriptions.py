"""The lite topics that clients subscribe, in memory: clients repeat their whole set every 30 s. Core.

A subscriber has a set `ready` of LMQs that may have messages for it. What always holds: an LMQ with messages behind the
group's offset is ready for each of its subscribers; a pop removes it when there are none. Source: LiteSubscriptionRegistryImpl,
LiteEventDispatcher (RocketMQ 5.5.0), which hands each message's event to one subscriber and repairs lost ones by scans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aerobee.remoting.peer import Peer

_NO_GROUPS: dict[str, dict[Subscriber, None]] = {}


class Subscriber:
    """One client of a lite group. `peer` receives its notices; `seen_ms` is the time of its last synchronization."""

    __slots__ = ("client_id", "group", "is_wildcard", "lmqs", "peer", "ready", "seen_ms", "topic")

    def __init__(self, group: str, client_id: str, topic: str, peer: Peer, now_ms: int) -> None:
        self.group = group
        self.client_id = client_id
        self.topic = topic
        self.peer = peer
        self.seen_ms = now_ms
        self.is_wildcard = False
        self.lmqs: dict[str, None] = {}
        self.ready: dict[str, None] = {}


class LiteSubscriptions:
    """All subscribers of one broker. `count` is the number of subscriptions, a wildcard counts as one."""

    def __init__(self) -> None:
        self._subscribers: dict[tuple[str, str], Subscriber] = {}
        self._of_lmq: dict[str, dict[str, dict[Subscriber, None]]] = {}  # LMQ -> group -> subscribers
        self._of_topic: dict[str, dict[str, dict[Subscriber, None]]] = {}  # topic -> group -> wildcards
        self.count = 0

    def __len__(self) -> int:
        return len(self._subscribers)

    def get(self, group: str, client_id: str) -> Subscriber | None:
        """The subscriber, None for a client that has not synchronized."""
        return self._subscribers.get((group, client_id))

    def enter(self, group: str, client_id: str, topic: str, peer: Peer, now_ms: int) -> Subscriber:
        """The subscriber of this client, which is alive now."""
        key = (group, client_id)
        found = self._subscribers.get(key)
        if found is None or found.topic != topic:
            if found is not None:
                self.leave(found)
            found = self._subscribers[key] = Subscriber(group, client_id, topic, peer, now_ms)
        found.peer, found.seen_ms = peer, now_ms
        return found

    def add(self, subscriber: Subscriber, lmq: str) -> bool:
        """Subscribe to an LMQ. False: it is subscribed already."""
        if lmq in subscriber.lmqs:
            return False
        subscriber.lmqs[lmq] = None
        self._of_lmq.setdefault(lmq, {}).setdefault(subscriber.group, {})[subscriber] = None
        self.count += 1
        return True

    def add_all(self, subscriber: Subscriber) -> bool:
        """Subscribe to every LMQ of the topic. False: as add()."""
        if subscriber.is_wildcard:
            return False
        subscriber.is_wildcard = True
        self._of_topic.setdefault(subscriber.topic, {}).setdefault(subscriber.group, {})[subscriber] = None
        self.count += 1
        return True

    def remove(self, subscriber: Subscriber, lmq: str) -> bool:
        """Unsubscribe from an LMQ. False: it is not subscribed."""
        if lmq not in subscriber.lmqs:
            return False
        del subscriber.lmqs[lmq]
        subscriber.ready.pop(lmq, None)
        _take_out(self._of_lmq, lmq, subscriber)
        self.count -= 1
        return True

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber with all its subscriptions."""
        for lmq in list(subscriber.lmqs):
            self.remove(subscriber, lmq)
        if subscriber.is_wildcard:
            subscriber.is_wildcard = False
            _take_out(self._of_topic, subscriber.topic, subscriber)
            self.count -= 1
        subscriber.ready.clear()
        if self._subscribers.get((subscriber.group, subscriber.client_id)) is subscriber:
            del self._subscribers[(subscriber.group, subscriber.client_id)]

    def of(self, lmq: str, topic: str) -> Iterator[tuple[str, dict[Subscriber, None]]]:
        """(group, subscribers) of an LMQ of the topic."""
        yield from self._of_lmq.get(lmq, _NO_GROUPS).items()
        yield from self._of_topic.get(topic, _NO_GROUPS).items()

    def of_group(self, group: str, lmq: str, topic: str) -> dict[Subscriber, None]:
        """The subscribers of an LMQ in one group."""
        return self._of_lmq.get(lmq, _NO_GROUPS).get(group) or self._of_topic.get(topic, _NO_GROUPS).get(
            group, {}
        )

    def silent(self, before_ms: int) -> list[Subscriber]:
        """Subscribers that have not synchronized since `before_ms`."""
        return [each for each in self._subscribers.values() if each.seen_ms < before_ms]

    def everything(self) -> Iterable[Subscriber]:
        """Every subscriber."""
        return self._subscribers.values()

    def clear(self) -> None:
        """Remove every subscriber."""
        for subscriber in list(self._subscribers.values()):
            self.leave(subscriber)


def _take_out(table: dict[str, dict[str, dict[Subscriber, None]]], name: str, subscriber: Subscriber) -> None:
    groups = table[name]
    subscribers = groups[subscriber.group]
    subscribers.pop(subscriber, None)
    if not subscribers:
        del groups[subscriber.group]
    if not groups:
        del table[name]
