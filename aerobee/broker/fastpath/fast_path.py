"""FastPath: connects a backend (seam.py) to connections, watermarks, statistics and settings.

RemotingServer gives each read to FastPath.burst first. The replies of a burst are sent in one write; with sync flush,
replies that wait for the disk are sent together after the flush. Sends and pulls have separate gates. While the broker
may not accept messages (a slave, overload, a refusing store, a start time in the future) sends are left to the
handlers, which return the reason; pulls and released long polls continue, because they relieve the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, cast

import orjson

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.admission.overload import Overload
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.fastpath.access import UNCHECKED_HOST, FrameAccess, WithoutLmqs
from aerobee.broker.fastpath.authorizations import Authorizations
from aerobee.broker.fastpath.choice import NATIVE, BackendChoice, choose_backend
from aerobee.broker.fastpath.exclusions import LEVELED_TOPIC, TOPICS, TopicContext, excluded_properties
from aerobee.broker.fastpath.long_poll import LongPolls, answer_released
from aerobee.broker.fastpath.permits import FENCE, Permits
from aerobee.broker.fastpath.pop import POP_START, PopBursts, PopHooks
from aerobee.broker.fastpath.results import BurstResult as NothingServed
from aerobee.broker.fastpath.seam import (
    Appended,
    Backend,
    BackendSettings,
    BurstResult,
    DelaySettings,
    GrpcSendSettings,
    HandedOut,
    LeveledReplies,
    OptionHooks,
    OptionSettings,
    PullResult,
    TransactionSettings,
)
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.metrics.metrics import EXACT_S, STEPPED_S, STEPS_A_S
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pull.pending_pulls import PendingPull, PendingPulls
from aerobee.broker.state.ack_level import LEVELS
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock, SystemClock
from aerobee.message import RETRY_TOPIC_BYTES_MAX, pack_host
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import boolean_text
from aerobee.remoting.connection import Connection
from aerobee.remoting.direct import Received
from aerobee.remoting.frame import PREFIX_BYTES
from aerobee.remoting.loop_watch import HELD_LIMIT_S, LoopWatch
from aerobee.remoting.native_loop import NativeSockets, Wait
from aerobee.remoting.peer import Peer
from aerobee.remoting.protocol import ACK_LEVEL_ATTRIBUTE
from aerobee.remoting.request_stats import RequestStats
from aerobee.store.message_store import MessageStore
from aerobee.words import plural

if TYPE_CHECKING:
    from aerobee.grpc.call import Event
    from aerobee.grpc.core import Http2Core, SendingHttp2

INELIGIBLE_MAX = 1_024  # topics that are known to be the handlers', until topics or settings change
LINGER_S = 0.001  # while a replica copies the log: turns within it may be reported as one
_NO_HOST = b""  # that a pull came from makes no difference
_LOG = logging.getLogger(__name__)


class FastPath:
    """Connects a backend to the broker; the burst hook of RemotingServer."""

    _grpc_sends: GrpcSendSettings | None = None  # set by serve_grpc()
    _ineligible: set[str]  # topics that are the handlers'

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        mappings: QueueMappings | None = None,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        requests: RequestStats,
        ack: AckPolicy,
        overload: Overload,
        pending_pulls: PendingPulls,
        resume_pull: Callable[[PendingPull], None],
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        clock: Clock,
        watch: LoopWatch | None = None,
        choice: BackendChoice | None = None,
        expressions: Expressions | None = None,
        delayed: DelaySettings | None = None,
        transactions: TransactionSettings | None = None,
        pops: PopHooks | None = None,
        options: OptionHooks | None = None,
        access: FrameAccess | None = None,
    ) -> None:
        """`resume_pull` answers a pending pull that the fast path cannot answer. `delayed`, `transactions`, `pops` and
        `options`: these kinds are served, too. `access`: access control, which checks each frame."""
        self.choice = choice or choose_backend()
        self._store = store
        self._appender = store.appender
        self._writability = store.writability
        self._pending_pulls = pending_pulls
        self._polls = LongPolls(store, pending_pulls, resume_pull)
        self._topics = topics
        # Their queue ids differ from the store's: handlers translate them (static_topic/).
        self._static = mappings or QueueMappings(file=None, clock=clock)
        self._offsets = offsets
        self._stats, self._requests = stats, requests
        self._burst_done, self._durability = store.burst_done, store.durability
        self._answered, self._short = requests.fast_answered, requests.short
        self._ack, self._overload = ack, overload
        self._live, self._identity = live, identity
        self._clock, self._monotonic = clock, clock.monotonic
        # None: native code reads the time.
        self._own_now_ms = None if type(clock) is SystemClock else clock.now_ms
        self._backend_times = self.choice.name == NATIVE  # durations of requests
        self._put_steps, self._get_steps = stats.put_latency.steps, stats.get_latency.steps
        self._longest_turn_s = 0.0  # of the native iterations since the last check, if long
        self._role = role
        self._watch = watch or LoopWatch(clock.monotonic)
        self._permits, self._ineligible = Permits(role, ack), set()
        self._opens_ms = 0
        self._delayed, self._transactions = delayed, transactions
        self._options, self._access = options, access
        self._pops = None if pops is None else PopBursts(pops, None if access is None else access.settings)
        self._authorizations = Authorizations(
            role=role,
            topics=topics,
            mappings=self._static,
            groups=groups,
            consumers=consumers,
            offsets=offsets,
            live=live,
            expressions=expressions or Expressions(),
        )
        self._backend = self._make_backend()
        self._direct_backend: Backend | None = self._backend
        stats.count_from(lambda: self._backend.take_totals())
        topics.on_change(lambda _: self._topics_changed())
        groups.on_change(lambda: self._backend.forget_authorizations())
        consumers.on_change(lambda: self._backend.forget_authorizations())
        offsets.on_reset(lambda *_: self._backend.forget_authorizations())
        live.on_change(lambda _: self._settings_changed())
        if access is not None:
            access.on_change(self._access_changed)
        pending_pulls.answer_first(self.answer)
        role.on_change(self._role_changed)

    def burst(self, connection: Connection, data: bytes | bytearray, position: int) -> int:
        """Serve the ordinary frames of `data` from `position` on; return the position of the first other frame."""
        if data.startswith(POP_START, position + PREFIX_BYTES):
            return self._burst_of_pops(connection, data, position)
        born_host = connection.burst_note
        if born_host is None:
            born_host = connection.burst_note = pack_host(*connection.host_port)
        started = self._monotonic()
        overload = self._overload
        # As MessageStore.store_time_now() and Overload.asked(), inlined: the calls cost 1,600 of the 37,000 instructions of a
        # native burst of one send (4 %).
        if self._own_now_ms is None:
            now_ms = time_ns() // 1_000_000
            overload.was_asked = True
            if started > overload.overdue or overload.is_idle:
                overload.asked(started)
        else:
            now_ms = self._own_now_ms()
            overload.asked()
        if now_ms < (last_ms := self._appender.last_store_timestamp):
            now_ms = last_ms
        try:
            result = self._backend.burst(
                data,
                position,
                born_host,
                now_ms,
                # As _takes_sends(), inlined (1,000 of 37,000 instructions, 3 %); backends check the fence
                # themselves.
                not (
                    overload.last_reason
                    or not self._writability.is_writable
                    or (self._ack.may_lack_replicas and self._ack.shortage)
                    or (self._opens_ms and self._is_closed())
                ),
                self._role.serves_reads,
                UNCHECKED_HOST if self._access is None else self._access.host_of(connection),
            )
        except Exception as error:
            self._give_up(error)  # its stored messages are not visible to the store
            raise
        stored_count = result.stored_count
        pulled = result.pulled
        if stored_count or pulled:
            if stored_count and self._durability.hears_bursts:
                self._burst_done()
            if result.deferred_replies:
                self._ack.hold(
                    connection,
                    self._store.log.end,
                    result.deferred_replies,
                    result.deferred_answers,
                    started,
                )
            if result.leveled_replies:
                self._hold_leveled(connection, result.leveled_replies)
            found = self._note(pulled, connection) if pulled else 0
            elapsed_s = self._monotonic() - started
            if not self._backend_times:
                self._took(elapsed_s, stored_count, found)
            if elapsed_s > HELD_LIMIT_S:
                self._watch.note_burst(data, position, connection.address, elapsed_s)
        elif self._answered:  # rollbacks alone
            self._requests.took(self._monotonic() - started)
        if result.replies:
            connection.write(result.replies)
        if result.fault is not None:
            # The failed frame may be stored or incomplete: its sender must not rely on either.
            raise result.fault
        return result.used

    def serve_grpc(self, sends: GrpcSendSettings) -> bool:
        """Serve SendMessage of gRPC from now on, in http2_burst(). False without the native backend: nothing is served then."""
        if not self._backend_times or self._direct_backend is None:
            return False
        self._grpc_sends = sends
        self._serve_grpc_sends()
        return True

    def http2_burst(
        self, connection: Connection, http2: Http2Core, data: bytes, now: float
    ) -> tuple[list[Event], int]:
        """Give what a connection of gRPC received to its core, or nothing while that has more; serve the ordinary sends of it, and
        return the events of all else, and how many calls were answered. `http2` is a native core where serve_grpc() was true. Raises what failed after bytes were written:
        the connection must not send outgoing() then."""
        backend, started = self._direct_backend, self._monotonic()
        self._overload.asked()
        if (
            backend is None
            or self._grpc_sends is None
            or (self._access is not None and self._access.host_of(connection) != UNCHECKED_HOST)
            or not self._takes_sends(self._overload.last_reason)
        ):
            return (http2.receive(data, now) if data else http2.proceed(now)), 0
        born_host = connection.burst_note
        if born_host is None:
            born_host = connection.burst_note = pack_host(*connection.host_port)
        core = cast("SendingHttp2", http2)
        now_ms, pick = self._store.store_time_now(), self._grpc_sends.pick(32)
        result = core.serve(data, now, backend, born_host, now_ms, pick)
        if result.is_lost and result.fault is not None:
            self._give_up(result.fault)
        elif result.stored_count:
            if self._durability.hears_bursts:
                self._burst_done()
            elapsed_s = self._monotonic() - started
            if elapsed_s > HELD_LIMIT_S:
                sends = plural(result.stored_count, "send")
                self._watch.note_turn(f"{sends} of gRPC", connection.address, elapsed_s)
        if result.fault is not None:
            raise result.fault
        return result.events, result.stored_count

    def _serve_grpc_sends(self) -> None:
        if self._grpc_sends is not None:
            backend = cast(Any, self._backend)  # the native one
            sends = self._grpc_sends
            backend.serve_grpc_sends(queue_count_of=sends.queue_count_of, reserved=sends.reserved)

    def _burst_of_pops(self, connection: Connection, data: bytes | bytearray, position: int) -> int:
        """As burst(), for requests of POP."""
        if self._pops is None:
            return position
        started = self._monotonic()
        try:
            host = UNCHECKED_HOST if self._access is None else self._access.host_of(connection)
            return self._pops.burst(connection, data, position, host)
        finally:
            elapsed_s = self._monotonic() - started
            if elapsed_s > HELD_LIMIT_S:
                self._watch.note_burst(data, position, connection.address, elapsed_s)

    def host_of(self, connection: Connection) -> str | None:
        """The host that a guard checks for this connection, for native sockets."""
        return UNCHECKED_HOST if self._access is None else self._access.host_of(connection)

    def receive(self, sockets: NativeSockets, wait: Wait, turn_count_max: int) -> Received:
        """Serve all connections with native sockets while no frame needs Python, and record the results; return the
        frames for Python."""
        timeout_s, loop_ready, loop_timers = wait
        overload = self._overload
        # A burst listener is notified of each iteration, and overload is sampled often from now on.
        is_told = overload.is_idle or self._opens_ms or self._store.wants_each_burst
        turns = sockets.run(
            self._direct_backend,
            timeout_s,
            turn_count_max=1 if is_told else turn_count_max,
            takes_sends=self._takes_sends(overload.last_reason),
            takes_pulls=self._role.serves_reads,
            now_ms=self._own_now_ms,
            loop_ready=loop_ready,
            loop_timers=loop_timers,
            linger_s=LINGER_S if not is_told and self._store.wants_bursts else -1.0,
        )
        turn_count, stored_count, pulled, held, fault = (
            turns.turn_count, turns.stored_count, turns.pulled, turns.held, turns.fault,
        )  # fmt: skip
        if turn_count:
            overload.asked()
        elif fault is None and not (stored_count or pulled or held or turns.unsent):
            return 0, turns.others, turns.events  # a timer of the loop: what an idle broker wakes up for
        began = self._monotonic()
        if fault is not None:
            self._give_up(fault)
            for connection, *_ in held:
                connection.failed(fault)  # the end of the log is unknown, and with it the time of durability
            held = []
        if stored_count:
            try:
                self._burst_done()
            except Exception:
                # Served frames stay served, and the connections expect further work.
                _LOG.exception("results of native connections were not recorded completely")
        for connection, frames, answers, level in held:
            try:
                if level is None:
                    self._ack.hold(connection, self._store.log.end, frames, answers)
                else:
                    self._hold_leveled(connection, ((level, frames, answers),))
            except Exception as error:
                connection.failed(error)
        for connection, results in pulled:
            try:
                self._note(results, connection)
            except Exception as error:
                connection.failed(error)  # a pull of it that waits would never be answered
        for transport, rest in turns.unsent:
            try:
                transport.on_unsent(rest)
            except Exception as error:
                transport.failed(error)
        held_s = max(self._longest_turn_s, self._monotonic() - began)
        if held_s > HELD_LIMIT_S:
            self._turn_held(stored_count, pulled, held_s)
        self._longest_turn_s = 0.0
        return turn_count, turns.others, turns.events

    def _hold_leveled(self, connection: Connection, leveled: Sequence[LeveledReplies]) -> None:
        """Defer replies until the log has their ack levels up to its present end."""
        for level, frames, answers in leveled:
            self._ack.hold_for(connection, self._store.log.end, frames, answers, LEVELS[level])

    def _took(self, elapsed_s: float, stored_count: int, found: int) -> None:
        """Record the duration of a burst of the Python backend."""
        codes = self._answered
        # As RequestStats.took() and Latency.add() count, inlined: their calls cost 8,200 of the 128,000 instructions of a burst
        # of one send (6 %).
        if (
            EXACT_S <= elapsed_s < STEPPED_S
            and codes
            and (times := len(codes)) == codes.count(code := codes[0])
        ):
            codes.clear()
            short = self._short[code]
            short.times += times
            short.sum_s += elapsed_s * times
            step = int(elapsed_s * STEPS_A_S)
            if stored_count:
                self._put_steps[step] += stored_count
            if found:
                self._get_steps[step] += found
            return
        self._requests.took(elapsed_s)
        if stored_count:
            self._stats.put_took(elapsed_s, stored_count)
        if found:
            self._stats.get_took(elapsed_s, found)

    def _put_took(self, elapsed_s: float, requests: int) -> None:
        """Long iterations reported by native code."""
        self._stats.put_took(elapsed_s, requests)
        self._longest_turn_s = max(self._longest_turn_s, elapsed_s)

    def _get_took(self, elapsed_s: float, pulls: int) -> None:
        self._stats.get_took(elapsed_s, pulls)
        self._longest_turn_s = max(self._longest_turn_s, elapsed_s)

    def _give_up(self, fault: BaseException) -> None:
        """Messages are in the log, possibly acknowledged, but not in the store's counters: nothing may be appended
        after them."""
        _LOG.error("messages were stored, but not recorded completely", exc_info=fault)
        self._appender.give_up(fault)

    def _turn_held(
        self,
        stored_count: int,
        pulled: Sequence[tuple[Connection, Sequence[PullResult]]],
        elapsed_s: float,
    ) -> None:
        """Log what blocked the event loop: the largest part of an iteration. Native code does not report the senders."""
        peer, results = max(pulled, key=lambda each: len(each[1]), default=(None, ()))
        if peer is None or stored_count > len(results):
            # For the iteration itself the backend reports only a number; its totals reach back to the last
            # check, at most a second.
            stored, handed_out = self._backend.take_totals()
            self._stats.count_totals(stored, handed_out)
            topics = {topic for topic, *_ in stored}
            where = f"topic {topics.pop()}" if len(topics) == 1 else plural(len(topics), "topic")
            self._watch.note_turn(f"a turn with {plural(stored_count, 'send')}", where, elapsed_s)
        else:
            self._watch.note_turn(f"a turn with {plural(len(results), 'pull')}", peer.address, elapsed_s)

    def answer(self, pulls: list[PendingPull]) -> list[PendingPull]:
        """Answer pulls that a message has released, like PullCalls.resume; return those that are not ordinary."""
        if not pulls or not self._role.serves_reads:
            return pulls
        backend, now_ms = self._backend, self._store.store_time_now()

        def burst(data: bytes, position: int) -> BurstResult:
            # The guard checked its peer at its arrival.
            return backend.burst(data, position, _NO_HOST, now_ms, False, True, UNCHECKED_HOST)

        started = self._monotonic()
        answered, others = answer_released(burst, pulls)
        replies: dict[Peer, list[bytes]] = {}
        self._answered.clear()  # the burst ends them: their duration is waiting time
        if answered:  # the duration of their reads is counted, as in PullService
            self._stats.get_took(self._monotonic() - started, len(answered))
        for pull, result, reply in answered:
            self._pending_pulls.answered(pull, ResponseCode.SUCCESS)
            group, topic = result.authorization.group, result.authorization.topic
            self._offsets.note_pull(group, topic, result.queue_id, result.next_offset)
            replies.setdefault(pull.peer, []).append(reply)
        for peer, frames in replies.items():
            peer.write_now(b"".join(frames))
        return others

    def _takes_sends(self, overload_reason: str) -> bool:
        """Whether messages can be accepted; otherwise send/send_service.py returns the reason."""
        return not (
            self._permits.numbers[FENCE]
            or overload_reason
            or not self._writability.is_writable
            or (self._ack.may_lack_replicas and self._ack.shortage)
            or (self._opens_ms and self._is_closed())
        )

    def _note(self, results: Sequence[PullResult], peer: Peer) -> int:
        """Record the effects of pulls, as PullCalls does, and keep those that wait. Returns the number of pulls that
        found messages."""
        found = 0
        for result in results:
            authorization, queue_id, next_offset = result.authorization, result.queue_id, result.next_offset
            group, topic = authorization.group, authorization.topic
            if (commit := result.commit_offset) is not None and self._role.is_master:
                self._offsets.commit_by_client(group, topic, queue_id, commit, peer.address)
            if (held := result.held) is None:
                found += 1
                self._offsets.note_pull(group, topic, queue_id, next_offset)
            else:
                self._stats.get_miss()
                self._polls.hold(peer, authorization, queue_id, next_offset, held)
        return found

    def _is_closed(self) -> bool:
        """Whether startAcceptSendRequestTimeStamp is in the future."""
        if self._clock.now_ms() >= self._opens_ms:
            self._opens_ms = 0
        return self._opens_ms != 0

    def _make_backend(self) -> Backend:
        config = self._live.value
        trace_on = boolean_text(config.trace_on)
        self._opens_ms = config.start_accept_send_request_time_stamp
        settings = BackendSettings(
            store=self._store,
            find_topic=self._find_eligible,
            find_authorization=self._authorizations.find,
            store_host=self._identity.store_host,
            own_properties=(
                f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01{trace_on}\x02"
                f"CLUSTER\x01{config.broker_cluster_name}\x02"
            ),
            reply_fields=f'","TRACE_ON":"{trace_on}","MSG_REGION":{_ascii_json(config.region_id)},"queueOffset":',
            reply_ext={"TRACE_ON": trace_on, "MSG_REGION": config.region_id},
            waiting=self._pending_pulls.by_queue,
            special_properties=excluded_properties(config),
            supports_long_poll=config.long_polling_enable,
            permits=self._permits.numbers,
            put_steps=self._put_steps,
            get_steps=self._get_steps,
            put_took=self._put_took,
            get_took=self._get_took,
            request_rows=self._requests.fast_rows,
            answered=self._requests.fast_answered,
            guard=None if self._access is None else self._access.settings,
        )
        options = None
        if self._options is not None:
            hooks = self._options if self._access is None else WithoutLmqs(self._options)
            options = OptionSettings(hooks=hooks, find_leveled=self._find_leveled)
        return self.choice.make(
            settings, delayed=self._delayed, transactions=self._transactions, options=options
        )

    def close(self) -> None:
        """Serve nothing more, and release the broker.

        Its counts are collected first. Python's garbage collection does not see native references: while one exists, a
        stopped broker is not freed.
        """
        self._stats.count_noted()
        self._backend, self._direct_backend = _ClosedBackend(), None
        self._delayed = self._transactions = self._pops = self._options = self._grpc_sends = None

    def _access_changed(self) -> None:
        """Users or permissions have changed; called in the thread of the change."""
        self._backend.forget_grants()
        if self._pops is not None:
            self._pops.forget_grants()

    def _topics_changed(self) -> None:
        self._ineligible.clear()
        self._backend.forget_topics()

    def _role_changed(self, role: RoleState) -> None:
        self._backend.forget_authorizations()

    def _settings_changed(self) -> None:
        if not isinstance(self._backend, _ClosedBackend):
            self._stats.count_noted()  # the previous backend's counts would be lost with it
            self._ineligible.clear()
            self._backend = self._direct_backend = self._make_backend()
            self._serve_grpc_sends()

    def _find_eligible(self, name: str) -> TopicConfig | None:
        if name in self._ineligible:
            return None
        config = self._topics.get(name)
        context = self._topic_context()
        if config is None or any(row.holds(config, context) for row in TOPICS):
            if len(name) <= RETRY_TOPIC_BYTES_MAX:  # a frame may name a topic with 200,000 characters
                if len(self._ineligible) >= INELIGIBLE_MAX:
                    self._ineligible.clear()
                self._ineligible.add(name)
            return None
        return config

    def _find_leveled(self, name: str) -> TopicConfig | None:
        """The config of a topic that only its ack level excludes."""
        config = self._topics.get(name)
        if config is None or config.attributes.get(ACK_LEVEL_ATTRIBUTE) not in LEVELS:
            return None
        context = self._topic_context()
        return (
            None if any(row.holds(config, context) for row in TOPICS if row is not LEVELED_TOPIC) else config
        )

    def _topic_context(self) -> TopicContext:
        return TopicContext(
            self._live.value, self._static.by_topic, self._store.config.enable_consume_queue_ext
        )


class _ClosedBackend:
    """The backend of a closed fast path."""

    def burst(
        self,
        data: bytes | bytearray,
        position: int,
        born_host: bytes,
        now_ms: int,
        takes_sends: bool,
        takes_pulls: bool,
        host: str | None = None,
    ) -> BurstResult:
        result = NothingServed()
        result.replies = result.deferred_replies = b""
        result.deferred_answers = result.leveled_replies = ()
        result.used, result.is_slow, result.fault = position, False, None
        result.stored_count, result.pulled = 0, ()
        return result

    def take_totals(self) -> tuple[Sequence[Appended], Sequence[HandedOut]]:
        """Return no totals: a closed backend counts nothing."""
        return (), ()

    def forget_topics(self) -> None:
        """Do nothing: a closed backend caches no topics."""

    def forget_authorizations(self) -> None:
        """Do nothing: a closed backend has no authorizations."""

    def forget_grants(self) -> None:
        """Do nothing: a closed backend caches no grants."""


def _ascii_json(text: str) -> str:
    """A JSON string in which every character is one Latin-1 byte."""
    escaped = orjson.dumps(text).decode()
    return "".join(char if char.isascii() else f"\\u{ord(char):04x}" for char in escaped)
