"""One run of a broker's POP on a simulated disk, from a seed: consumers that forget, repeat and come too late, a broker that
is killed or loses power at any point, also inside a pop.

The real store, timer, check points, revival and request handlers run on virtual time; only sockets are left out. What must
hold, looked at with every answer and at the end:

- nothing is lost: every message that the log has is acknowledged by a consumer in the end;
- a message is never at two consumers at the same time;
- once an acknowledgement was answered in time and is durable, its message never comes again;
- reconsume_times says how often a message was handed out before;
- an ordered queue hands out what follows the last acknowledged message, without a gap, and never while a block is unacknowledged.

A scenario costs some milliseconds; thousands run in a minute (`python -m tests.simulation.pop_world 10000`).
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.delay.deliveries import Deliveries
from aerobee.broker.delay.escaped import FILE_NAME, EscapedDeliveries
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.fastpath.pop import PopBursts
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.pull.pending_pulls import PendingPulls
from aerobee.broker.send.lmq import lmq_entries
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import Role, RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.broker.timer.timer_feature import Timers
from aerobee.client.consumer.popped import PoppedMessage, decode_popped
from aerobee.errors import AerobeeError, RemoteError, StoreError
from aerobee.message import encode_properties
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from tests.simulation.store_world import InlineExecutor
from tests.simulation.timer_world import WorldClock

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
PLAIN, ORDERED, GROUP = "orders", "inorder", "g"
QUEUES = 2
BACKENDS = [choose_backend(PYTHON)] + ([choose_backend(NATIVE)] if choose_backend().name == NATIVE else [])
LIVES = 4  # of a long run; two show most faults in a third of the time
SLOTS = 64
STEPS_MS = (3_000, 40_000, 600_000, 3_600_000)  # of the wall clock
INVISIBLE_MS = (1_200, 3_000, 8_000)


class Killed(BaseException):
    """The process ends here."""


class Consumer:
    """A consumer's connection: the requests over it and the handling of each answer."""

    def __init__(self) -> None:
        self.is_open = True
        self.congested = False
        self.address = "10.0.0.1:5000"
        self.host_port = ("10.0.0.1", 5000)
        self.opaque = 0
        self.then: dict[int, Callable[[RemotingCommand], None]] = {}

    def on_close(self, callback: Any) -> None:
        self.callback = callback

    def send(self, reply: RemotingCommand) -> None:
        self.then.pop(reply.opaque)(reply)

    def write(self, data: bytes) -> None:
        decoder = FrameDecoder()
        decoder.feed(data)
        while (reply := decoder.next_frame()) is not None:
            self.send(reply)

    write_now = write


class Held:
    """A message at a consumer."""

    def __init__(self, number: int, message: PoppedMessage, life: int) -> None:
        self.number = number
        self.message = message
        self.life = life  # power losses so far: one that was handed out before is another's by now
        self.is_changing = False


class Known:
    """The simulation's record of one message."""

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.times = 0  # handed out
        self.held: Held | None = None
        self.acked_somehow = False
        self.asked = 0  # acknowledgements that are not answered
        self.done = False  # acknowledged in time, and in the log
        self.done_end = 0  # the log's end that proves it
        self.done_durable = False


class World:
    """A broker's store, timer and POP, their disk, and the consumers."""

    def __init__(self, seed: int, *, sets_clock: bool = False) -> None:
        """`sets_clock`: the wall clock is set while it works, ahead and back, by seconds to an hour."""
        self.rng = rng = random.Random(seed)
        self.ways = random.Random(seed)  # by handler or fast path
        self.clock = WorldClock()
        self.steps = random.Random(f"clock {seed}") if sets_clock else None
        self.is_set = False  # whether the wall clock was ever set: then invisible times mean little
        self.disk = SimulatedDisk(rng, now_ms=lambda: self.clock.now_ms())
        self.backend = BACKENDS[seed % len(BACKENDS)]  # a seed is the same run with either
        self.is_sync = rng.random() < 0.4
        self.uses_buffer = rng.random() < 0.2
        self.config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=rng.choice((32_768, 65_536)),
            mapped_file_size_consume_queue=rng.choice((400, 2_000)),
            mapped_file_size_timer_log=rng.choice((4_096, 16_384)),
            message_index_enable=False,
            max_hash_slot_num=16,
            max_index_num=64,
            commit_log_reserve_bytes=4_096,
            flush_disk_type="SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH",
            timer_flush_interval_ms=rng.choice((300, 1_000, 5_000)),
        )
        self.live = LiveConfig(
            BrokerConfig(
                broker_name="broker-a",
                enable_pop_buffer_merge=self.uses_buffer,
                enable_retry_topic_v2=rng.random() < 0.2,
                pop_from_retry_probability=rng.choice((0, 20, 100)),
            )
        )
        self.known: dict[int, Known] = {}
        self.crashes = 0
        self.power_losses = 0
        self.kill_in = -1  # appends until the process is killed; -1: it is not killed
        self.soon: list[Callable[[], None]] = []
        self.counts: Counter[str] = Counter()
        self._native_parts: list[Callable[[], None]] = []  # how those of this run are released

    # --- run

    def start(self, down_s: float) -> None:
        self.let_go()
        before, self.clock = self.clock, WorldClock(self.clock.true_ms() + round(down_s * 1000))
        self.clock.set_by_ms = before.set_by_ms
        self.soon = []
        self.store = store = MessageStore(
            self.config, disk=self.disk, clock=self.clock, executor=InlineExecutor(), store_host=lambda: HOST
        )
        store.load()
        self.consumer = Consumer()
        self.offsets = ConsumerOffsets(
            clock=self.clock,
            file=self._file("consumerOffset.json"),
            log_end_now=lambda: self.store.log.end,
            has_pop_buffer=self.uses_buffer,
        )
        self.offsets.load()
        # The file of topics may be behind by any number of them: here nothing of it is left at each start.
        topics = TopicTable(file=None, clock=self.clock)
        topics.adopt(key for key, queue in store.queues.items() if queue.max_offset)
        for topic in (PLAIN, ORDERED):
            topics.topics.setdefault(topic, TopicConfig(topic, QUEUES, QUEUES))
        stats = BrokerStats(clock=self.clock, cluster="c")
        held = PendingPulls(clock=self.clock, call_soon=self.soon.append)
        self.deliveries = Deliveries(
            store=store,
            topics=topics,
            stats=stats,
            waiting=held.by_queue,
            choice=self.backend,
        )
        self._native_parts.append(self.deliveries.close)
        parts = SimpleNamespace(
            store=store,
            bounds=Bounds(self.live, self.clock),
            writer=MessageWriter(store),
            unserved=UnservedKinds(),
            deliveries=self.deliveries,
            lmqs=lmq_entries(store),
            topics=topics,
            groups=GroupTable(clock=self.clock, live=self.live, file=None),
            offsets=self.offsets,
            consumers=ConsumerRegistry(clock=self.clock, call_soon=lambda run: run()),
            stats=stats,
            schedule=SimpleNamespace(),
            pending_pulls=held,
            ack=AckPolicy(store=store, clock=self.clock, timeout_ms=60_000),
            expressions=Expressions(),
            live=self.live,
            identity=BrokerIdentity(
                cluster="c",
                name="broker-a",
                broker_id=0,
                address="127.0.0.1:10911",
                ha_address="127.0.0.1:10912",
                store_host=HOST,
            ),
            role=RoleState(Role.MASTER, "of the test"),
            client=SimpleNamespace(),
            clock=self.clock,
            disk=self.disk,
            config_file=self._file,
            escaped=EscapedDeliveries(self._file(FILE_NAME)),
            run_blocking=self._run_blocking,
            spawn=lambda work: work.close(),
            make_pop_records=self.backend.make_pop_records,
        )
        parts.groups.find_or_create(GROUP)
        self.timers = Timers(cast(BrokerParts, parts), slot_count=SLOTS)
        self.pop_feature = Pop(
            cast(BrokerParts, parts), timer=self.timers, pick=self.rng.randrange, call_soon=self.soon.append
        )
        self._native_parts.append(self.pop_feature.engine.log.close)
        self.handlers = {**self.pop_feature.handlers()}
        self.bursts = PopBursts(self.pop_feature.fast_path_hooks())
        self.timers.load()
        self.pop_feature.load()
        self._look_at_offsets()
        self._count_appends(store)
        self.timers.start()
        self.pop_feature.start()
        self.run_soon()

    def let_go(self) -> None:
        """The end of a run: native parts hold its store, and Python's garbage collection does not know of it."""
        for close in self._native_parts:
            close()
        self._native_parts = []

    def _file(self, name: str) -> ConfigFile:
        return ConfigFile(self.config.path("config", name), disk=self.disk)

    @staticmethod
    def _run_blocking(work: Callable[[], None]) -> None:
        try:
            work()
        except AerobeeError:
            return

    def _count_appends(self, store: MessageStore) -> None:
        """Let the process end before or after some append."""
        for owner, name in (
            (store, "append"),
            (store, "append_batch"),
            (self.pop_feature.engine.log.own, "append"),
            (self.pop_feature.engine.log, "_append_natively"),
            (self.deliveries, "run"),
        ):
            inner = getattr(owner, name)

            def counted(*what: Any, inner: Callable[..., Any] = inner, **more: Any) -> Any:
                if self.kill_in == 0:
                    raise Killed
                result = inner(*what, **more)
                if not result:
                    return result  # another request does it
                if self.kill_in > 0:
                    self.kill_in -= 1
                    if self.kill_in == 0 and self.rng.random() < 0.5:
                        raise Killed
                return result

            setattr(owner, name, counted)

    def run_soon(self) -> None:
        while self.soon:
            work = self.soon.pop(0)
            work()

    def advance(self, seconds: float) -> None:
        left = seconds
        while left > 0:
            self.clock.advance(min(left, 0.25))
            self.run_soon()
            left -= 0.25

    def flush(self) -> None:
        self.store.flush_now()
        self.run_soon()

    def save_offsets(self) -> None:
        """As Broker does each few seconds."""
        write = self.offsets.prepare_save()
        if write is not None:
            self.store.flushed.when(self.store.log.end, lambda ok: self._run_blocking(write) if ok else None)

    def stop_cleanly(self) -> None:
        self.pop_feature._release_waiting()
        self.run_soon()
        self.pop_feature.stop()
        self.timers.stop()
        self.store.flush_now()
        self.offsets.save()
        self.pop_feature.save()
        self.timers.save()
        self.timers.close()
        self.store.flush_queues_now()
        self.disk.crash()

    def _look_at_offsets(self) -> None:
        """After a start: the offset of an ordered group is that of the file, which must not be beyond the acknowledged messages."""
        for queue_id in range(QUEUES):
            place = self.offsets.query(GROUP, ORDERED, queue_id) or 0
            for offset, number in enumerate(self.queue(ORDERED, queue_id)):
                known = self.known[number]
                assert offset >= place or known.acked_somehow, f"{number} was passed over"
                known.done = known.done and offset < place

    def queue(self, topic: str, queue_id: int) -> list[int]:
        """Numbers of the messages that the log has in a queue."""
        at = self.store.min_offset(topic, queue_id)
        found: list[int] = []
        while at < self.store.max_offset(topic, queue_id):
            result = self.store.get_messages(topic, queue_id, at, count_max=32)
            for record in _records(result.body):
                found.append(int(record.body))
            at = result.next_offset
        return found

    # --- what clients do

    def send(self) -> None:
        number = len(self.known)
        topic, queue_id = self.rng.choice((PLAIN, PLAIN, ORDERED)), self.rng.randrange(QUEUES)
        message = StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=b"%d" % number,
            properties=encode_properties({"UNIQ_KEY": f"K{number}", "TAGS": "t"}).encode(),
            born_host=HOST,
            born_timestamp=self.clock.now_ms(),
        )
        self.known[number] = Known(topic, queue_id)
        try:
            self.store.append(message)
        except StoreError:
            return
        self.run_soon()

    def ask(
        self, code: int, ext: dict[str, str], then: Callable[[RemotingCommand], None], body: bytes = b""
    ) -> None:
        consumer = self.consumer
        consumer.opaque += 1
        request = RemotingCommand(code, ext, body, opaque=consumer.opaque)
        consumer.then[request.opaque] = then
        frame = b"" if body or self.ways.random() < 0.2 else encode_frame(request)
        if self.bursts.burst(cast(Any, consumer), frame, 0) < len(frame) or not frame:
            self.ask_handler(request)
        if self.rng.random() < 0.7:
            self.run_soon()

    def ask_handler(self, request: RemotingCommand) -> None:
        """What the fast path does not take."""
        consumer, code = self.consumer, request.code
        try:
            reply = self.handlers[code](cast(Any, consumer), request)
        except RemoteError as error:
            reply = request.reply(error.code, remark=error.remark)
        if reply is not None:
            assert isinstance(reply, RemotingCommand), "nothing is cold here"
            consumer.send(reply)

    def pop(self, topic: str, *, wait_ms: int = 0, count: int = 0) -> None:
        rng = self.rng
        now = self.clock.now_ms()
        ext = {
            "consumerGroup": GROUP, "topic": topic, "queueId": str(rng.choice((-1, -1, 0, 1))),
            "maxMsgNums": str(count or rng.choice((1, 3, 32))), "invisibleTime": str(rng.choice(INVISIBLE_MS)),
            "pollTime": str(wait_ms), "bornTime": str(now), "initMode": "0",
            "order": "true" if topic == ORDERED else "false",
        }  # fmt: skip
        self.ask(200050, ext, lambda reply: self.popped(topic, reply))

    def popped(self, topic: str, reply: RemotingCommand) -> None:
        if reply.code != 0:
            assert reply.code in (210, 14, 1), reply
            return
        blocks: dict[int, list[int]] = {}
        pop_time = reply.integer("popTime")
        for message in decode_popped(reply, topic, GROUP, "broker-a"):
            number = int(message.body)
            known = self.known[number]
            # A killed broker forgets what was only in its merge buffer, and hands it out again.
            forgot = self.uses_buffer and self.crashes > 0
            assert not known.done or forgot or self.is_set, f"{number} was acknowledged and comes again"
            held = known.held
            assert (
                held is None
                or forgot
                or self.is_set
                or held.life != self.power_losses
                or held.is_changing
                or held.message.visible_at_ms <= pop_time
            ), f"{number} is at two consumers until {held.message.visible_at_ms}, popped at {pop_time}"
            if topic == PLAIN and not self.is_set:
                assert message.reconsume_times <= known.times + self.crashes, f"{number} has too many tries"
                if not self.power_losses and not forgot:
                    assert message.reconsume_times >= known.times, f"{number} has too few tries"
            elif topic == ORDERED:
                blocks.setdefault(message.queue.queue_id, []).append(number)
            known.times += 1
            known.held = Held(number, message, self.power_losses)
        for queue_id, block in blocks.items():
            self._check_block(queue_id, block)

    def _check_block(self, queue_id: int, block: list[int]) -> None:
        queue = self.queue(ORDERED, queue_id)
        first = queue.index(block[0])
        assert queue[first : first + len(block)] == block, f"{block} is not in order"
        for number in queue[:first]:
            assert self.known[number].acked_somehow, f"{number} was not acknowledged, {block[0]} follows"

    def handle_one(self) -> None:
        """A consumer acts on a message, or forgets it."""
        rng = self.rng
        holds = [known.held for known in self.known.values() if known.held is not None]
        if not holds:
            return
        for held in rng.sample(holds, min(len(holds), rng.choice((1, 1, 4)))):
            if rng.random() < 0.7:
                self.ack(held)
            elif not held.is_changing:
                self.change(held)

    def _ext(self, held: Held) -> dict[str, str]:
        message = held.message
        return {
            "consumerGroup": GROUP, "topic": message.pop_queue.topic, "queueId": str(message.pop_queue.queue_id),
            "offset": str(message.queue_offset), "extraInfo": str(message.handle),
        }  # fmt: skip

    def ack(self, held: Held) -> None:
        known = self.known[held.number]

        def answered(reply: RemotingCommand) -> None:
            known.asked -= 1
            if reply.code != 0:
                assert reply.code in (208, 13, 14, 1), reply
                return
            known.acked_somehow = True
            in_time = known.held is held and held.message.visible_at_ms > self.clock.now_ms()
            known.held = None if known.held is held else known.held
            if not in_time or held.life != self.power_losses or held.is_changing:
                return
            if known.topic == ORDERED:
                # Its acknowledgement is in the group's offset, when all before it are.
                known.done = (
                    self.offsets.query(GROUP, ORDERED, known.queue_id) or 0
                ) > held.message.queue_offset
                return
            known.done = True
            self.store.flushed.when(
                self.store.log.end, lambda ok: setattr(known, "done_durable", ok or known.done_durable)
            )

        known.asked += 1
        self.ask(200051, self._ext(held), answered)

    def change(self, held: Held) -> None:
        invisible_ms = self.rng.choice((0, 500, *INVISIBLE_MS))
        held.is_changing = True  # until the answer it is unknown which time counts

        def answered(reply: RemotingCommand) -> None:
            if reply.code != 0:
                assert reply.code in (208, 13, 14, 1), reply
                return
            message = held.message
            handle = message.handle
            message.handle = type(handle)(
                handle.start_offset if handle.is_ordered else message.queue_offset,
                reply.integer("popTime"),
                reply.integer("invisibleTime"),
                reply.integer("reviveQid"),
                handle.retry,
                handle.broker_name,
                handle.queue_id,
                handle.queue_offset,
            )
            held.is_changing = False

        self.ask(200053, {**self._ext(held), "invisibleTime": str(invisible_ms)}, answered)

    def work(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(3, 9)):
            for _ in range(rng.choice((0, 1, 1, 4))):
                self.send()
            for _ in range(rng.choice((0, 1, 2))):
                self.pop(rng.choice((PLAIN, PLAIN, ORDERED)), wait_ms=rng.choice((0, 0, 2_000)))
            for _ in range(rng.choice((0, 1, 3))):
                self.handle_one()
            self.run_soon()
            if rng.random() < 0.6:
                self.flush()
            if rng.random() < 0.4:
                self.save_offsets()
            if rng.random() < 0.2:
                self.store.flush_queues_now()
            self.advance(rng.choice((0, 0.01, 0.3, 1, 4)))
            if self.steps is not None and self.steps.random() < 0.4:
                self.set_clock(self.steps.choice((0, 1, 1, -1)) * self.steps.choice(STEPS_MS))

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock to be so far ahead of the true time."""
        self.is_set = True
        self.clock.set_by_ms = by_ms

    def drain(self) -> None:
        """No more faults, and the clock is right: everything is consumed in the end."""
        if self.is_set:
            self.set_clock(0)
            self.advance(2 * max(STEPS_MS) / 1_000)
        for _ in range(60):
            for topic in (PLAIN, ORDERED):
                for _ in range(2 * QUEUES + 2):
                    self.pop(topic, count=32)
                    self.run_soon()
                    self.flush()
            for known in self.known.values():
                if known.held is not None and known.held.message.visible_at_ms > self.clock.now_ms():
                    self.ack(known.held)
            self.run_soon()
            self.flush()
            self.advance(1.5)
            self.flush()
            if not self.left():
                return

    def left(self) -> list[int]:
        """Unacknowledged messages of the log."""
        stored = [
            n for topic in (PLAIN, ORDERED) for queue in range(QUEUES) for n in self.queue(topic, queue)
        ]
        return [number for number in stored if not self.known[number].acked_somehow]

    def died(self, *, power: bool) -> None:
        self.crashes += 1
        self.kill_in = -1
        if power:
            self.disk.power_loss()
            self.power_losses += 1
        else:
            self.disk.crash()
        for known in self.known.values():
            if known.asked:  # its acknowledgement may be in the log although no consumer got the answer
                known.acked_somehow, known.asked = True, 0
            if known.topic == ORDERED:
                # Its block is in a file that is written every few seconds: it may come again immediately.
                known.held = None
            if known.topic == PLAIN and (power or self.uses_buffer):
                known.done = known.done and known.done_durable and not self.uses_buffer
                known.held = None
            elif known.held is not None and known.held.is_changing:
                known.held = None


def _records(body: bytes) -> list[Any]:
    from_record = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        body_at = at + 84
        length = int.from_bytes(body[body_at : body_at + 4], "big")
        from_record.append(SimpleNamespace(body=body[body_at + 4 : body_at + 4 + length]))
        at += size
    return from_record


def crashes(seed: int, lives: int = LIVES, *, sets_clock: bool = False) -> World:
    """Stops of every kind, between and inside the broker's calls, and if wanted steps of the wall clock."""
    world = World(seed, sets_clock=sets_clock)
    rng = world.rng
    for _ in range(lives):
        kind = rng.choice(("clean", "kill", "power", "cut", "killed inside"))
        if kind == "cut":
            world.disk.cut_power_at(rng.choice((5, 50, 200, 1_000)) + rng.randrange(50))
        try:
            world.start(rng.choice((0, 0.1, 3, 40)))
            if kind == "killed inside":
                world.kill_in = rng.randrange(1, 60)
            world.work()
            if kind == "clean":
                world.kill_in = -1
                world.stop_cleanly()
                continue
        except PowerCut:
            kind = "cut"
        except Killed:
            kind = "killed inside"
        world.died(power=kind in ("power", "cut") or (kind == "killed inside" and rng.random() < 0.3))
    world.start(0)
    world.drain()
    left = world.left()
    assert not left, f"never acknowledged: {left}"
    world.let_go()
    return world


def main() -> None:
    """Run many seeds: `python -m tests.simulation.pop_world [count] [first]`."""
    logging.disable(logging.CRITICAL)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    begin = time.monotonic()
    for seed in range(first, first + count):
        try:
            crashes(seed)
        except BaseException:
            print(f"seed {seed}")
            raise
    print(f"{count} seeds from {first} in {time.monotonic() - begin:.0f} s: nothing lost, nothing twice")


if __name__ == "__main__":
    main()
