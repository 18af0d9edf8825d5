"""The parts around each backend and around the handlers, whose answers and bytes the differential fuzz compares."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from aerobee.broker.fastpath.choice import PYTHON, choose_backend
from aerobee.broker.fastpath.seam import (
    Authorization,
    DelaySettings,
    LeveledReplies,
    PullResult,
    Transaction,
    TransactionSettings,
)
from aerobee.broker.pull.pending_pulls import PendingPull
from aerobee.broker.send.option_hooks import OptionFastPath
from aerobee.broker.send.send_back_hooks import SendBackFastPath
from aerobee.broker.state.ack_level import AckLevel
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.feature import PutHook
from aerobee.broker.timer.timer_hook import TimerHook
from aerobee.broker.transaction.fast_path_hooks import DelayFastPath
from aerobee.broker.transaction.half_message import is_half, to_half
from aerobee.broker.transaction.transaction_table import OpenTransaction
from aerobee.errors import AerobeeError
from aerobee.property_names import TIMER_REQUESTS, TRAN_MSG
from aerobee.remoting.body.heartbeat import ConsumerData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.peer import Peer
from aerobee.remoting.request_stats import FAST_ROW_COUNT, FAST_ROWS, ROW_NUMBERS
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.system_names import HALF_TOPIC, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from tests.fakes import FakePeer
from tests.fuzz.fastpath_bursts import GROUPS, LEVELED_TOPICS, LMQS, TOPICS, captured_groups, captured_topics
from tests.fuzz.fastpath_guarded import AccessWorld
from tests.unit.broker.sending import Sending

EPOCH = 7  # of each broker here
LEFT_TO_HANDLERS = b"for the handler: "
_UNREAD = {
    "defaultTopicQueueNums": "4",
    "d": "4",
    "unitMode": "false",
    "k": "false",
    "maxReconsumeTimes": "16",
    "l": "16",
}
UNREAD = {
    10: _UNREAD,
    310: _UNREAD,
    320: {**_UNREAD, "h": "0", "flag": "0"},
}  # fields that the fast path does not look at


class Counterpart(Sending):
    """The parts around one backend."""

    def __init__(
        self, path: Path, name: str, *, access: AccessWorld | None = None, **store_settings: Any
    ) -> None:
        config = BrokerConfig(
            broker_name="broker-a", enable_property_filter=True, dedup_window_millis=50_000, dedup_keys_max=40
        )
        self.access = access
        gate = None if access is None else access.gate
        settings = {"enable_lmq": True, "enable_multi_dispatch": True, **store_settings}
        super().__init__(path, config, choice=choose_backend(name), gate=gate, **settings)
        for lmq in LMQS:
            self.store.queue(lmq, 0)
        for topic in captured_topics():
            self.topics.put(TopicConfig(topic, 8, 8))
        for topic in TOPICS:
            self.topics.put(TopicConfig(topic, 4, 4))
        self.topics.put(TopicConfig("TopicWriteOnly", 4, 4, 2))
        for topic, level in LEVELED_TOPICS.items():
            self.topics.put(TopicConfig(topic, 4, 3, attributes={"ack.level": level}))
        for group in (*GROUPS, *captured_groups()):
            self.groups.find_or_create_all((group,))
            if group.isascii():
                self.topics.put(TopicConfig(f"%RETRY%{group}", 1, 1))  # takes messages back
        subscriptions = (SubscriptionData.parse("TopicNormal", "TagA", sub_version=5),)
        data = ConsumerData("group", subscription_data_set=subscriptions)
        member = FakePeer()
        member.is_open = False  # not to be notified of others
        self.consumers.register(data, member, "c1", language=3, version=513)  # type: ignore[arg-type]
        self.connection = FakePeer()
        self.seen_end = 0
        self.told: list[Any] = []
        self.fails = False  # whoever is notified of something, from time to time
        self.store.on_arrival(self._listen)
        self._open: dict[tuple[str, str], OpenTransaction] = {}
        self._serve_all_kinds()

    def resume(self, pull: PendingPull) -> None:
        self.connection.write(LEFT_TO_HANDLERS + pull.frame)
        self.pulls.resume(pull)

    # --- what the families ask and tell

    def _serve_all_kinds(self) -> None:
        """The fast path serves messages for later and transactions, too."""
        self.limits: tuple[int, int] | None = (1_000, 259_200_000)
        self.fast_path._delayed = DelaySettings(
            hooks=DelayFastPath(
                takes_delayed=self.takes_halves,
                appended=lambda *what: self._tell("level", *what),
                timer_appended=lambda: self._tell("timer"),
                timer_limits=lambda: self.limits,
            ),
            schedule_topic=TopicConfig(SCHEDULE_TOPIC, 18, 18),
            timer_topic=TopicConfig(WHEEL_TIMER_TOPIC, 1, 1),
            broker_name="broker-a",
            delays_ms=self.store.config.delay_levels_ms(),
            send_backs=self.send_back_hooks(),
        )
        self.fast_path._transactions = TransactionSettings(
            hooks=self, half_topic=TopicConfig(HALF_TOPIC, 1, 1)
        )
        self.fast_path._options = _Options(self)
        self.fast_path._settings_changed()

    def send_back_hooks(self) -> SendBackFastPath:
        """The hooks of messages that are sent back, which choose the last queue."""
        return SendBackFastPath(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            stats=self.stats,
            live=self.live,
            role=self.role,
            pick=lambda count: count - 1,
        )

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        if self.fails and len(self.told) % 2:
            raise KeyError("the listener's own fault")

    def _listen(self, topic: str, queue_id: int, end: int, code: int) -> None:
        if self.fails and end % 3 == 0:
            raise ValueError("the listener's own fault")

    def takes_halves(self) -> bool:
        return not self.live.value.enable_topic_message_type_check

    def half_queue(self) -> AnyQueue:
        return self.store.queue(HALF_TOPIC, 0)

    def open_transactions(self) -> dict[tuple[str, str], OpenTransaction]:
        return self._open

    def began(
        self,
        group: str,
        key: str,
        topic: str,
        queue_offset: int,
        offset: int,
        size: int,
        stored_ms: int,
        *keys_and_tag: str,
    ) -> None:
        transaction = OpenTransaction((group, key), topic, queue_offset, offset, stored_ms=stored_ms)
        transaction.size, transaction.keys_and_tag = size, (keys_and_tag[0], keys_and_tag[1])
        self._open[group, key] = transaction
        self._tell("began", group, key, topic, queue_offset, offset, size, stored_ms, *keys_and_tag)

    def committed(self, transaction: Transaction) -> None:
        self._decided("committed", transaction)

    def rolled_back(self, transaction: Transaction) -> None:
        self._decided("rolled back", transaction)

    def _decided(self, what: str, transaction: Transaction) -> None:
        for key in [key for key, each in self._open.items() if each is transaction]:
            del self._open[key]  # of the one table: a burst that looked it up continues with it
        self._tell(what, transaction.queue_offset)

    def burst_done(self) -> None:
        self._tell("done")

    # --- a burst

    def burst(
        self,
        data: bytes | bytearray,
        position: int,
        born_host: bytes,
        gates: tuple[bool, bool] = (True, True),
        host: str | None = None,
    ) -> tuple[Any, ...]:
        """Serve through the shell's backend, and let the shell's accounts follow."""
        backend, (takes_sends, takes_pulls) = self.fast_path._backend, gates
        if host is not None:  # what is released is requested from there
            self.connection.host_port = (host, self.connection.host_port[1])
        result = backend.burst(
            data,
            position,
            born_host,
            self.store.store_time_now(),
            takes_sends=takes_sends,
            takes_pulls=takes_pulls,
            host=host,
        )
        answered = self._answered()
        if result.stored_count:
            self.store.burst_done()
        self.fast_path._note(result.pulled, self.connection)  # type: ignore[arg-type]
        self.run_soon()
        released, self.connection.written = self.connection.written, []
        pulled = [_fields(each) for each in result.pulled]
        stored, handed_out = self.take_totals()
        told, self.told = self.told, []
        start, self.seen_end = self.seen_end, self.store.log.end
        written = b"" if start == self.seen_end else self.appended(start)
        fault = result.fault if result.fault is None else (type(result.fault), str(result.fault))
        return (
            result.replies, result.used, result.is_slow, result.deferred_replies, stored, pulled, fault, told,
            released, self.seen_end, written, answered, sorted(result.deferred_answers), result.stored_count, handed_out,
            leveled_of(result.leveled_replies), self.dedup_keys(),
        )  # fmt: skip

    def dedup_keys(self) -> list[Any]:
        """The dedup keys of stored messages, and where these are."""
        return list(self.duplicates._firsts.items())

    def take_totals(self) -> tuple[list[Any], list[Any]]:
        """Take the backend's totals and count them, as the shell's statistics do; return them in a separate order."""
        stored, handed_out = self.fast_path._backend.take_totals()
        self.fast_path._stats.count_totals(stored, handed_out)
        return (
            sorted((*each[:4], tuple(each[4])) for each in stored),
            sorted((whom.group, whom.topic, *counts) for whom, *counts in handed_out),
        )

    def _answered(self) -> list[int]:
        """By row of RequestStats, what was answered since the last call: counted by native code, or still to be."""
        rows, waiting = self.requests.fast_rows, self.requests.fast_answered
        self.requests.count_short()
        answered = Counter(FAST_ROWS[code] for code in waiting)
        numbers = [
            sum(rows[row * ROW_NUMBERS : (row + 1) * ROW_NUMBERS - 1]) + answered[row]
            for row in range(FAST_ROW_COUNT)
        ]
        rows[:] = array("q", bytes(8 * len(rows)))
        waiting.clear()
        return numbers

    def appended(self, start: int) -> bytes:
        return b"".join(
            bytes(segment.file.buffer[max(0, start - segment.base) : max(0, self.seen_end - segment.base)])
            for segment in self.store.log.segments
            if segment.end > start
        )

    def everything(self, *, with_empty: bool = True) -> Iterator[tuple[str, object]]:
        """Every byte of the files and every number kept with them; queues that have nothing only `with_empty`."""
        log, index = self.store.log, self.store.index
        # How far it is made ready ahead follows from the sizes of runs, which handlers append one by one.
        yield "log", (log.end, log.limit if with_empty else 0, log.base)
        for segment in log.segments:
            yield segment.path[-20:], bytes(segment.file.buffer[:])
        for key, queue in sorted(self.store.queues.items()):
            assert isinstance(queue, ConsumeQueue)
            if not (queue.max_offset or with_empty):
                continue
            # What was made ready for a message that was refused: one backend looks at its numbers first.
            has_begun = queue.max_offset > 0
            yield f"queue {key}", (
                queue.min_offset, queue.max_offset, queue.readable_max, queue.room if has_begun else 0, queue.unsynced_from,
            )  # fmt: skip
            for file in queue._files.files if has_begun else ():
                yield f"queue {key} {file.base}", bytes(queue._pool.buffer(file)[:])
        for number, keys in enumerate(index.files):
            yield f"index {number}", (
                keys.begin_timestamp, keys.end_timestamp, keys.begin_physical_offset, keys.end_physical_offset,
                keys.used_slots, keys.count, keys.dirty_from,
            )  # fmt: skip
            yield f"index {number} bytes", bytes(keys.buffer[:])
        yield "unsynced", sorted((q.topic, q.queue_id) for q in self.store.pool.unsynced_queues)  # type: ignore[attr-defined]
        yield "offsets", self.offsets.to_dict()
        yield "dedup keys", self.dedup_keys()
        yield "last", (self.store.last_store_timestamp, self.store.last_record_offset)
        for name in ("TOPIC_PUT_NUMS", "GROUP_GET_NUMS"):
            yield name, sorted((k, c.count, c.size, c.times) for k, c in self.stats.counters(name))


class HandlerCounterpart(Counterpart):
    """The ordinary handlers around a separate store. They get what the backends have served, frame by frame."""

    def __init__(self, path: Path, *, access: AccessWorld | None = None, **store_settings: Any) -> None:
        super().__init__(path, PYTHON, access=access, **store_settings)
        self.waiting_for_disk: list[bytes] = []
        self.waiting_for_level: dict[str, list[bytes]] = {}
        self.leveled: dict[str, list[bytes]] = {}  # of the last call of serve()
        self.sends._epoch = lambda: EPOCH
        self.pending_pulls.answer_first(lambda pulls: pulls)  # no fast path
        self.writer.add_hook(PutHook(frozenset(TIMER_REQUESTS), self._timer))
        self.writer.add_hook(
            PutHook(
                frozenset({TRAN_MSG}),
                lambda message, properties: to_half(message, properties) if is_half(message) else message,
            )
        )
        self.ack.answer = self._answer  # type: ignore[method-assign, assignment]
        self._handlers = {**self.sends.handlers(), **self.pulls.handlers()}
        self._timers = TimerHook(
            config=lambda: self.store.config, clock=self.clock, count_in_slot=lambda _: 0, chance=lambda: 1.0
        )

    def _timer(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        return self._timers(message, properties)

    def _answer(
        self,
        peer: Peer,
        reply: RemotingCommand,
        end_offset: int,
        *,
        request_code: int,
        wants_to_wait: bool = True,
        level: AckLevel | None = None,
    ) -> RemotingCommand | None:
        if level is not None:
            if not wants_to_wait or not (level.is_flushed or level.is_replicated):
                return reply
            self.waiting_for_level.setdefault(level.name, []).append(encode_frame(reply))
            return None
        if not (wants_to_wait and self.store.holds_answers):
            return reply
        self.waiting_for_disk.append(encode_frame(reply))
        return None

    def resume(self, pull: PendingPull) -> None:
        self.pulls.resume(pull)

    def serve(
        self, frames: Sequence[bytes], host_port: tuple[str, int]
    ) -> tuple[list[bytes], list[bytes], list[bytes], bytes]:
        """Give frames to their handlers: replies, those that wait for the disk, those of polls, and what was written."""
        self.connection.host_port = host_port
        self.connection.burst_note = None
        replies: list[bytes] = []
        for frame in frames:
            request = without_unread(decode_frame(frame))
            try:
                if self.gate is not None:
                    self.gate.check(self.connection, decode_frame(frame))
                reply: Any = self._handlers[request.code](self.connection, request)  # type: ignore[arg-type]
            except AerobeeError as error:  # as Connection answers it
                reply = request.reply(1, remark=str(error))
            assert reply is None or isinstance(reply, RemotingCommand), reply
            if reply is not None and not request.is_oneway:
                replies.append(encode_frame(reply))
        self.store.burst_done()
        self.run_soon()
        released, self.connection.written = self.connection.written, []
        held, self.waiting_for_disk = self.waiting_for_disk, []
        self.leveled, self.waiting_for_level = self.waiting_for_level, {}
        self.told.clear()
        start, self.seen_end = self.seen_end, self.store.log.end
        written = b"" if start == self.seen_end else self.appended(start)
        return replies, held, released, written


def without_unread(request: RemotingCommand) -> RemotingCommand:
    """The request with plain values in the fields that the fast path does not read: handlers refuse a strange one there."""
    plain = UNREAD.get(request.code, {})
    request.ext = {name: plain.get(name, value) for name, value in (request.ext or {}).items()}
    return request


class _Options(OptionFastPath):
    """The hooks of options, whose notice fails from time to time after it was noted."""

    def __init__(self, counterpart: Counterpart) -> None:
        super().__init__(duplicates=counterpart.duplicates, epoch=lambda: EPOCH, store=counterpart.store)
        self._counterpart = counterpart

    def stored(self, *what: Any) -> None:
        super().stored(*what)
        self._counterpart._tell("dedup key", *what)


def leveled_of(leveled: Iterable[LeveledReplies]) -> dict[str, tuple[bytes, Counter[int]]]:
    """Replies that wait for an ack level, by level, and their numbers by request code."""
    found: dict[str, tuple[bytes, Counter[int]]] = {}
    for level, frames, answers in leveled:
        before, counts = found.get(level, (b"", Counter()))
        found[level] = before + frames, counts + Counter(dict(answers))
    return found


def _fields(result: PullResult) -> tuple[Any, ...]:
    told = tuple(
        getattr(result.authorization, name) for name in Authorization.__slots__ if name != "accept"
    )  # a function of each side
    return (
        told, result.queue_id, result.next_offset, result.commit_offset, result.held,
    )  # fmt: skip
