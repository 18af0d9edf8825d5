"""Counters and durations of the clients of this process, for aerobee.contrib.prometheus. Off until a collector turns it on.

    METERS.enable()          the clients that are made from then on count
    METERS.read()            what they counted, by kind of client and group

Each client counts in a separate meter, in the thread of its event loop, so no lock is taken for a message. read() may
be called in any thread. Totals of closed and forgotten clients are kept: a counter never decreases. A topic beyond TOPICS_MAX of a
meter, and a group beyond GROUPS_MAX of the process, is counted as OTHER, so the number of series is bounded.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakMethod

from aerobee.client.base.trace_record import TRACE_GROUP

# Upper bounds of the buckets, in seconds: a send within a machine, within a region, over a failover.
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOPICS_MAX = 200  # of one meter
GROUPS_MAX = 200  # pairs of kind and group
ERRORS_MAX = 50  # classes of errors of one topic
OTHER = "(other)"


class Durations:
    """A histogram: `counts` has the number of durations in each bucket of BOUNDS_S, the last element those above all bounds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration; a bound belongs to its bucket."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def add(self, other: Durations) -> None:
        """Count all durations of `other`, too."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s


@dataclass(slots=True)
class TopicFigures:
    """What one client did with one topic since its start."""

    sends: Durations = field(default_factory=Durations)
    """Successful send requests, from the call to its result, with all tries."""
    sent_further: int = 0
    """Sent messages that are no request of `sends`: of a batch all but the first, and one-way sends."""
    send_failures: dict[str, int] = field(default_factory=dict)
    """Messages whose send raised, by class of the error."""
    send_retries: int = 0
    """Further tries of sends after a failed one."""
    received: int = 0
    """Messages that arrived from brokers and match the subscription."""
    handled: Durations = field(default_factory=Durations)
    """Calls of the handler, failed ones included."""
    consumed: int = 0
    """Messages whose handler call succeeded, or that poll() returned, or that were acknowledged."""
    handler_failures: dict[str, int] = field(default_factory=dict)
    """Messages whose handler call raised, by class of the error."""
    retried: int = 0
    """Messages that this client gave back for another delivery."""
    dead_letters: int = 0
    """Messages that this client dead-lettered."""

    def add(self, other: TopicFigures) -> None:
        """Count everything of `other`, too."""
        self.sends.add(other.sends)
        self.handled.add(other.handled)
        for mine, theirs in (
            (self.send_failures, other.send_failures),
            (self.handler_failures, other.handler_failures),
        ):
            for name, count in tuple(theirs.items()):
                _count(mine, name, count)
        self.sent_further += other.sent_further
        self.send_retries += other.send_retries
        self.received += other.received
        self.consumed += other.consumed
        self.retried += other.retried
        self.dead_letters += other.dead_letters


@dataclass(slots=True)
class ClientState:
    """Present state of clients: of one, or the sum of all that are open in a group."""

    clients: int = 0
    """Open clients."""
    in_flight: int = 0
    """Sends that wait for a reply; running handler calls of a consumer."""
    connections: int = 0
    """Open connections."""
    queues: dict[str, int] = field(default_factory=dict)
    """Queues that a consumer owns, by topic."""
    buffered: dict[str, int] = field(default_factory=dict)
    """Messages that arrived and are not finished, by topic."""
    buffered_bytes: dict[str, int] = field(default_factory=dict)
    """Size of those messages, by topic."""
    lag: dict[str, int] = field(default_factory=dict)
    """Messages after the offset that is committed next, as of the last reply of each queue's broker, by topic."""

    def add(self, other: ClientState) -> None:
        """Add the state of another client."""
        self.clients += other.clients
        self.in_flight += other.in_flight
        self.connections += other.connections
        for mine, theirs in (
            (self.queues, other.queues),
            (self.buffered, other.buffered),
            (self.buffered_bytes, other.buffered_bytes),
            (self.lag, other.lag),
        ):
            for topic, number in theirs.items():
                key = topic if topic in mine or len(mine) < TOPICS_MAX else OTHER
                mine[key] = mine.get(key, 0) + number


# The present state of one client: a bound method, called in any thread.
ReadState = Callable[[], ClientState]


class ClientMeter:
    """The counters of one client. Its client calls it, in the thread of its event loop."""

    __slots__ = ("_state", "group", "kind", "topics")

    def __init__(self, kind: str, group: str, state: ReadState) -> None:
        """`state` is a method of the client; the meter does not keep the client in memory."""
        self.kind = kind
        self.group = group
        self.topics: dict[str, TopicFigures] = {}
        self._state = WeakMethod(state)

    def of(self, topic: str) -> TopicFigures:
        """The figures of a topic, or those of OTHER when the meter has as many topics as it may have."""
        found = self.topics.get(topic)
        if found is None:
            key = topic if len(self.topics) < TOPICS_MAX else OTHER
            found = self.topics.setdefault(key, TopicFigures())
        return found

    def sent(self, topic: str, seconds: float, count: int = 1) -> None:
        """One request with `count` messages is stored."""
        figures = self.of(topic)
        figures.sends.record(seconds)
        figures.sent_further += count - 1

    def sent_oneway(self, topic: str) -> None:
        """A connection took a one-way message."""
        self.of(topic).sent_further += 1

    def send_failed(self, topic: str, error: BaseException, count: int = 1) -> None:
        """The send of `count` messages raised `error`."""
        _count(self.of(topic).send_failures, type(error).__name__, count)

    def send_retried(self, topic: str) -> None:
        """A send makes another try."""
        self.of(topic).send_retries += 1

    def received(self, topic: str, count: int) -> None:
        """Messages arrived."""
        self.of(topic).received += count

    def consumed(self, topic: str, count: int) -> None:
        """Messages are consumed without a handler."""
        self.of(topic).consumed += count

    def handled(self, topic: str, seconds: float, count: int = 1, error: BaseException | None = None) -> None:
        """A handler call with `count` messages ended, with `error` if it raised one."""
        figures = self.of(topic)
        figures.handled.record(seconds)
        if error is None:
            figures.consumed += count
        else:
            _count(figures.handler_failures, type(error).__name__, count)

    def retried(self, topic: str, count: int = 1) -> None:
        """Messages are delivered again later."""
        self.of(topic).retried += count

    def dead_lettered(self, topic: str) -> None:
        """A message went to the dead letters."""
        self.of(topic).dead_letters += 1

    @property
    def is_forgotten(self) -> bool:
        """Whether the client no longer exists."""
        return self._state() is None

    def state(self) -> ClientState | None:
        """The client's present state; None when it no longer exists."""
        read = self._state()
        return None if read is None else read()


@dataclass(slots=True)
class GroupFigures:
    """What all clients of one kind and group in this process did, and their present state."""

    kind: str
    group: str
    topics: dict[str, TopicFigures] = field(default_factory=dict)
    state: ClientState = field(default_factory=ClientState)

    def add(self, topics: Mapping[str, TopicFigures]) -> None:
        """Count the figures of one client."""
        for topic, figures in tuple(topics.items()):
            key = topic if topic in self.topics or len(self.topics) < TOPICS_MAX else OTHER
            self.topics.setdefault(key, TopicFigures()).add(figures)


class Meters:
    """All meters of the process."""

    def __init__(self) -> None:
        self.is_enabled = False
        self._lock = threading.Lock()
        self._open: list[ClientMeter] = []
        self._ended: dict[tuple[str, str], GroupFigures] = {}  # of clients that are closed or forgotten

    def enable(self) -> None:
        """Let clients that are made from now on count."""
        self.is_enabled = True

    def disable(self) -> None:
        """Let new clients count no more, and forget what was counted."""
        with self._lock:
            self.is_enabled = False
            self._open.clear()
            self._ended.clear()

    def open(self, kind: str, group: str, state: ReadState) -> ClientMeter | None:
        """The meter of a new client; None while metering is off, and for the sender of a client's trace records."""
        if not self.is_enabled or group.startswith(TRACE_GROUP):
            return None
        meter = ClientMeter(kind, group, state)
        with self._lock:
            self._keep_totals(lambda meter: meter.is_forgotten)
            self._open.append(meter)
        return meter

    def close(self, meter: ClientMeter | None) -> None:
        """A client has closed: its totals remain. A second call has no effect."""
        with self._lock:
            self._keep_totals(lambda each: each is meter)

    def _keep_totals(self, is_ended: Callable[[ClientMeter], bool]) -> None:
        for meter in [meter for meter in self._open if is_ended(meter)]:
            self._open.remove(meter)
            _group_of(self._ended, meter).add(meter.topics)

    def read(self) -> Iterable[GroupFigures]:
        """The totals and the present state of each kind of client and group."""
        found: dict[tuple[str, str], GroupFigures] = {}
        with self._lock:
            self._keep_totals(lambda meter: meter.is_forgotten)
            for ended in self._ended.values():
                found[ended.kind, ended.group] = GroupFigures(ended.kind, ended.group)
                found[ended.kind, ended.group].add(ended.topics)
            for meter in self._open:
                group = _group_of(found, meter)
                group.add(meter.topics)
                state = meter.state()
                if state is not None:
                    group.state.add(state)
        return found.values()


def _group_of(groups: dict[tuple[str, str], GroupFigures], meter: ClientMeter) -> GroupFigures:
    key = meter.kind, meter.group
    if key not in groups and len(groups) >= GROUPS_MAX:
        key = meter.kind, OTHER
    return groups.setdefault(key, GroupFigures(*key))


def _count(counts: dict[str, int], name: str, count: int) -> None:
    key = name if name in counts or len(counts) < ERRORS_MAX else OTHER
    counts[key] = counts.get(key, 0) + count


METERS = Meters()
