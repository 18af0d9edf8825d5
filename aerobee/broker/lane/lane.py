"""The lane: what joins LaneCore (lane/core.py, or its native twin) to connections, watermarks, statistics and settings.

RemotingServer gives each read to Lane.burst first. Replies of a burst leave in one write; with sync flush those whose
senders wait for the disk leave together when it has them. While the broker may not take messages (a slave, overload, a
store that refuses, a start time that lies ahead) nothing is served here, and send_service.py says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import orjson

from aerobee.broker.config import PERM_WRITE, LiveConfig
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.feature import SecondLane
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.identity import BrokerIdentity
from aerobee.broker.lane.choice import LaneChoice, LaneTwin, choose_lane
from aerobee.broker.lane.core import SPECIAL_PROPERTIES, Put
from aerobee.broker.lane.grants import LaneGrants
from aerobee.broker.lane.long_poll import LanePolls, answer_released
from aerobee.broker.lane.pull import Got
from aerobee.broker.overload import Overload
from aerobee.broker.pull.held_pulls import HeldPull, HeldPulls
from aerobee.broker.send.durable_replies import DurableReplies
from aerobee.broker.send.message_type import NORMAL, PLAIN_TYPES, TYPE_ATTRIBUTE
from aerobee.broker.stats import BrokerStats
from aerobee.broker.topic_table import NOT_SENDABLE, SYSTEM_PREFIX, TopicTable
from aerobee.clock import Clock
from aerobee.message import DLQ_PREFIX, LEGAL_NAME, RETRY_PREFIX, SHARDING_KEY, TOPIC_BYTES_MAX, pack_host
from aerobee.remoting.body.topic_config import SINGLE_TAG, TopicConfig
from aerobee.remoting.command import boolean_text
from aerobee.remoting.connection import Connection
from aerobee.remoting.direct import Event
from aerobee.remoting.frame import PREFIX_BYTES
from aerobee.remoting.native_loop import NativeSockets
from aerobee.remoting.peer import Peer
from aerobee.store.config import BrokerRole
from aerobee.store.message_store import MessageStore

_POP_START = b'{"code":200'  # how the headers of POP's requests begin, which are for the handlers

_NO_HOST = b""  # that a pull came from makes no difference

_LOG = logging.getLogger(__name__)


class Lane:
    """Joins LaneCore to the broker. Given to RemotingServer as its burst hook."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        durable: DurableReplies,
        overload: Overload,
        held: HeldPulls,
        resume_pull: Callable[[HeldPull], None],
        live: LiveConfig,
        identity: BrokerIdentity,
        clock: Clock,
        choice: LaneChoice | None = None,
        second: Callable[..., SecondLane] | None = None,
        expressions: Expressions | None = None,
    ) -> None:
        """`second` makes what is asked about the frames that the lane leaves, before they go to the handlers.

        `resume_pull` answers a held pull that the lane cannot answer.
        """
        self.choice = choice or choose_lane()
        self._store = store
        self._held = held
        self._polls = LanePolls(store, held, resume_pull)
        self._topics = topics
        self._offsets = offsets
        self._stats = stats
        self._durable = durable
        self._overload = overload
        self._live = live
        self._identity = identity
        self._clock = clock
        self._now_ms = clock.now_ms
        self._monotonic = clock.monotonic
        self._is_slave = not identity.is_master or store.config.broker_role is BrokerRole.SLAVE
        self._opens_ms = 0
        self._grants = LaneGrants(
            topics=topics,
            groups=groups,
            consumers=consumers,
            offsets=offsets,
            live=live,
            expressions=expressions or Expressions(),
        )
        self._make_second = second
        self._second: SecondLane | None = None
        self._core = self._make_core()
        self._direct_core: LaneTwin | None = self._core
        topics.on_change(lambda _: self._forget_topics())
        groups.on_change(lambda: self._core.forget_grants())
        consumers.on_change(lambda: self._core.forget_grants())
        offsets.on_reset(lambda *_: self._core.forget_grants())
        live.on_change(lambda _: self._settings_changed())
        held.answer_first(self.answer)

    def burst(self, connection: Connection, data: bytes | bytearray, position: int) -> int:
        """Serve what is ordinary in `data` from `position` on; return the first position that was not served."""
        if data.startswith(_POP_START, position + PREFIX_BYTES):
            return position
        born_host = connection.lane
        if born_host is None:
            born_host = connection.lane = pack_host(*connection.host_port)
        if not self._is_open():
            return position
        now_ms, started = self._store_time_now(), self._monotonic()
        while True:
            replies, used, slow, held, puts, gets = self._core.burst(data, position, born_host, now_ms)
            if puts:
                self._stored(connection, puts, held)
            if gets:
                self._note(gets, connection)
            self._took(self._monotonic() - started, puts, gets)
            if replies:
                connection.write(replies)
            if (
                not slow
                or self._second is None
                or connection.congested
                or data.startswith(_POP_START, used + PREFIX_BYTES)
            ):
                return used
            replies, position, held, puts = self._second.transactions(data, used, born_host, now_ms)
            if position == used:
                return used
            if puts:
                self._stored(connection, puts, held)
            if replies:
                connection.write(replies)
            self._took(self._monotonic() - started, puts, [])

    def receive(self, sockets: NativeSockets) -> list[Event]:
        """Serve what has arrived at all connections whose bytes the native lane reads; return what is for others."""
        core = self._direct_core if self._is_open() else None
        started = self._monotonic()
        puts, gets, held, events = sockets.receive(core, self._store_time_now())
        try:
            if puts:
                self._count(puts)
            for connection, frames in held:
                self._durable.hold(connection, self._store.log.end, frames)
            for connection, pulled in gets:
                try:
                    self._note(pulled, connection)
                except Exception as error:
                    connection.failed(error)  # a pull of it that was to wait would never be answered
        except Exception:
            # What was served stays served, and the connections have more than that to be told.
            _LOG.exception("a turn of connections was not noted to its end")
        for transport, rest in sockets.send_replies():
            transport.not_taken(rest)
        self._took(self._monotonic() - started, puts, [each for _, pulled in gets for each in pulled])
        return events

    def answer(self, pulls: list[HeldPull]) -> list[HeldPull]:
        """Answer pulls that a message has released, as PullCalls.resume does; return those that are not ordinary."""
        if not pulls or not self._is_open():
            return pulls
        core, now_ms = self._core, self._store_time_now()
        try:
            answered, others = answer_released(lambda data, at: core.burst(data, at, _NO_HOST, now_ms), pulls)
        except Exception:
            # Nothing of it has been answered or noted, and one pull's fault is not that of the others.
            _LOG.exception("the lane could not answer %d pulls that waited", len(pulls))
            return pulls
        replies: dict[Peer, list[bytes]] = {}
        for pull, (grant, queue_id, next_offset, _, count, size, _), reply in answered:
            self._stats.group_get(grant.group, grant.topic, count, size)
            self._offsets.note_pull(grant.group, grant.topic, queue_id, next_offset)
            replies.setdefault(pull.peer, []).append(reply)
        for peer, frames in replies.items():
            peer.write_now(b"".join(frames))
        return others

    def _is_open(self) -> bool:
        """Whether messages can be taken; while not, send_service.py says why."""
        return not (
            self._is_slave
            or self._overload.reason
            or not self._store.is_writable
            or (self._opens_ms and self._is_closed())
        )

    def _store_time_now(self) -> int:
        """As MessageStore.store_time_now, without its calls."""
        now_ms, last_ms = self._now_ms(), self._store.last_store_timestamp
        return now_ms if now_ms > last_ms else last_ms

    def _stored(self, connection: Connection, puts: list[Put], held: bytes) -> None:
        self._count(puts)
        if held:
            self._durable.hold(connection, self._store.log.end, held)

    def _count(self, puts: list[Put]) -> None:
        for topic, count, size, requests in puts:
            self._stats.topic_put(topic, count, size, requests)
        self._store.burst_done()

    def _took(self, elapsed_s: float, puts: list[Put], gets: list[Got]) -> None:
        """Note how long one burst took: that is what each request of it waited."""
        if puts:
            self._stats.put_took(elapsed_s, puts[0][3] if len(puts) == 1 else sum([put[3] for put in puts]))
        if gets:
            found = len([got for got in gets if got[6] is None])
            if found:
                self._stats.get_took(elapsed_s, found)

    def _note(self, gets: list[Got], connection: Connection) -> None:
        """Note what pulls change, as PullCalls does, and hold those that wait."""
        offsets, stats = self._offsets, self._stats
        for grant, queue_id, next_offset, commit, count, size, waits in gets:
            if commit is not None:
                offsets.commit_by_client(grant.group, grant.topic, queue_id, commit, connection.address)
            if waits is None:
                stats.group_get(grant.group, grant.topic, count, size)
                offsets.note_pull(grant.group, grant.topic, queue_id, next_offset)
            else:
                stats.get_miss()
                self._polls.hold(connection, grant, queue_id, next_offset, *waits)

    def _is_closed(self) -> bool:
        """Whether startAcceptSendRequestTimeStamp lies ahead."""
        if self._clock.now_ms() >= self._opens_ms:
            self._opens_ms = 0
        return self._opens_ms != 0

    def _make_core(self) -> LaneTwin:
        config = self._live.value
        trace_on = boolean_text(config.trace_on)
        special = SPECIAL_PROPERTIES
        if config.enable_topic_message_type_check:
            special |= {SHARDING_KEY}
        self._opens_ms = config.start_accept_send_request_time_stamp
        shared: dict[str, Any] = {
            "store": self._store,
            "find_topic": self._find_ordinary,
            "find_grant": self._grants.find,
            "store_host": self._identity.store_host,
            "own_properties": (
                f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01{trace_on}\x02"
                f"CLUSTER\x01{config.broker_cluster_name}\x02"
            ),
            "reply_fields": f'","TRACE_ON":"{trace_on}","MSG_REGION":{_ascii_json(config.region_id)},"queueOffset":',
            "reply_ext": {"TRACE_ON": trace_on, "MSG_REGION": config.region_id},
            "waiting": self._held.by_queue,
            "special_properties": special,
        }
        if self._make_second is not None:
            self._second = self._make_second(self.choice, **shared)
        return self.choice.make(**shared, parks=config.long_polling_enable)

    def close(self) -> None:
        """Serve nothing more, and let go of the broker.

        The native twin is unknown to Python's garbage collection: as long as it is held here, nothing of a broker that
        has stopped is freed.
        """
        self._core, self._second, self._direct_core = _ClosedCore(), None, None
        self._make_second = None

    def _forget_topics(self) -> None:
        self._core.forget_topics()
        if self._second is not None:
            self._second.forget_topics()

    def _settings_changed(self) -> None:
        if not isinstance(self._core, _ClosedCore):
            self._core = self._direct_core = self._make_core()

    def _find_ordinary(self, name: str) -> TopicConfig | None:
        config = self._topics.get(name)
        if (
            config is None
            or self._store.config.enable_consume_queue_ext
            or name in NOT_SENDABLE
            or name.startswith((RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX))
            or len(name) > TOPIC_BYTES_MAX
            or not LEGAL_NAME.match(name)
            or config.topic_filter_type != SINGLE_TAG
            or config.attributes.get("queue.type", "SimpleCQ") != "SimpleCQ"
            or config.attributes.get("cleanup.policy", "DELETE") != "DELETE"
            or (
                self._live.value.enable_topic_message_type_check
                and config.attributes.get(TYPE_ATTRIBUTE, NORMAL) not in PLAIN_TYPES
            )
            or (config.order and not self._live.value.broker_permission & PERM_WRITE)
        ):
            return None
        return config


class _ClosedCore:
    """The core of a lane that is closed."""

    def burst(
        self, data: bytes | bytearray, position: int, born_host: bytes, now_ms: int
    ) -> tuple[bytes, int, bool, bytes, list[Put], list[Got]]:
        return b"", position, False, b"", [], []

    def forget_topics(self) -> None:
        """It knows none."""

    def forget_grants(self) -> None:
        """It gives none."""


def _ascii_json(text: str) -> str:
    """A JSON string in which every character is one Latin-1 byte."""
    escaped = orjson.dumps(text).decode()
    return "".join(char if char.isascii() else f"\\u{ord(char):04x}" for char in escaped)
