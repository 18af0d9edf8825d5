"""One run of a broker's delayed messages on a simulated disk, from a seed.

The real store, timer and levels run on virtual time; the broker dies at any point, also inside a call of the disk,
and starts again. The log is the judge: what it holds in the end was stored once and delivered once, never before its time.

A scenario is a function of a seed. It costs some milliseconds; thousands run in a minute
(`python -m tests.simulation.timer_world 10000`).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, cast

from aerobee.broker.delay.deliveries import Deliveries
from aerobee.broker.delay.escaped import FILE_NAME, EscapedDeliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pull.pending_pulls import PendingPulls
from aerobee.broker.send.delay_level import delay_level_hook
from aerobee.broker.send.lmq import lmq_entries
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import Role, RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.timer.timer_feature import Timers
from aerobee.clock import ManualClock
from aerobee.errors import AerobeeError, StoreError
from aerobee.message import Record, decode_record, encode_properties
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.recall_handle import RecallHandle, decode_recall_handle
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system_names import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
LEVELS = "1s 2s 4s"
LEVELS_MS = (1_000, 2_000, 4_000)
WINDOW_S = 6
MAX_DELAY_MS = 25_000
SLOTS = 64  # half of the wheel; it turns several times in a run
LIVES = 4
BACKENDS = [choose_backend(PYTHON)] + ([choose_backend(NATIVE)] if choose_backend().name == NATIVE else [])
TOPIC = "orders"
STEPS_MS = (3_000, 30_000, 90_000, 3_600_000, 26 * 86_400_000, 24 * 365 * 86_400_000)  # of the wall clock


class InlineExecutor(Executor):
    """Runs its work immediately, so that a seed decides everything."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class WorldClock(ManualClock):
    """The wall clock may be set; the steady one continues. `set_by_ms` is how far it is ahead of the true time."""

    set_by_ms = 0

    def now_ms(self) -> int:
        return self.true_ms() + self.set_by_ms

    def true_ms(self) -> int:
        return super().now_ms()


class Sent:
    """What a producer knows of one message."""

    def __init__(self, number: int, due_ms: int, handle: str = "", *, is_moment: bool = False) -> None:
        self.number = number
        self.is_moment = is_moment  # else a delay
        self.due_ms = due_ms
        self.handle = handle
        self.is_durable = False
        self.recalled_in_time = (
            False  # the cancelling message was safe before the second of the due time began
        )


class World:
    """A broker's store, timer and levels, and what producers sent."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = WorldClock()
        self.is_set = False  # whether the wall clock was ever set: then due times mean little
        self.disk = SimulatedDisk(self.rng, now_ms=lambda: self.clock.now_ms())
        self.config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=self.rng.choice((16384, 65536)),
            mapped_file_size_consume_queue=self.rng.choice((400, 2000)),
            mapped_file_size_timer_log=self.rng.choice((4096, 16384)),
            message_index_enable=False,
            max_hash_slot_num=16,
            max_index_num=64,
            commit_log_reserve_bytes=4096,
            flush_disk_type=self.rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
            message_delay_level=LEVELS,
            timer_roll_window_slot=WINDOW_S,
            timer_max_delay_sec=MAX_DELAY_MS // 1000,
            timer_flush_interval_ms=self.rng.choice((300, 1000, 5000)),
        )
        self.sent: dict[int, Sent] = {}
        self.store: MessageStore
        self.timers: Timers
        self.schedule: Schedule
        self.writer: MessageWriter
        self._deliveries: Deliveries | None = None

    # --- run

    def let_go(self) -> None:
        """The broker is dead: its native backend, which garbage collection does not see into, holds it no longer."""
        if self._deliveries is not None:
            self._deliveries.close()

    def start(self, down_s: float) -> None:
        """Open everything after some time without a broker."""
        self.let_go()
        before, self.clock = self.clock, WorldClock(self.clock.true_ms() + round(down_s * 1000))
        self.clock.set_by_ms = before.set_by_ms
        self.store = MessageStore(
            self.config, disk=self.disk, clock=self.clock, executor=InlineExecutor(), store_host=lambda: HOST
        )
        self.store.load()
        stats = BrokerStats(clock=self.clock, cluster="c")
        live = LiveConfig(BrokerConfig(broker_name="broker-a", recall_message_enable=True))
        topics = TopicTable(file=None, clock=self.clock)
        topics.topics = {TOPIC: TopicConfig(TOPIC, 2, 2)}
        self.writer = MessageWriter(self.store)
        self.held = PendingPulls(clock=self.clock, call_soon=lambda work: None)
        self.store.on_arrival(self.held.on_appended)
        deliveries = self._deliveries = Deliveries(
            store=self.store,
            topics=topics,
            stats=stats,
            waiting=self.held.by_queue,
            choice=self.rng.choice(BACKENDS),
        )
        self.schedule = Schedule(
            store=self.store,
            deliveries=deliveries,
            file=ConfigFile("/store/config/delayOffset.json", disk=self.disk),
            clock=self.clock,
            stats=stats,
            existing_queue=topics.existing_queue,
        )
        self.schedule.load()
        parts = SimpleNamespace(
            store=self.store,
            writer=self.writer,
            topics=topics,
            stats=stats,
            schedule=self.schedule,
            deliveries=deliveries,
            lmqs=lmq_entries(self.store),
            escaped=EscapedDeliveries(ConfigFile(f"/store/config/{FILE_NAME}", disk=self.disk)),
            live=live,
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
            run_blocking=self._run_blocking,
            ack=SimpleNamespace(answer=lambda peer, reply, end, **_: reply),
            spawn=lambda work: work.close(),
        )
        self.timers = Timers(cast(BrokerParts, parts), slot_count=SLOTS)
        self.timers.load()
        assert self.timers.put_hook is not None
        self.writer.add_hook(self.timers.put_hook)
        self.writer.add_hook(delay_level_hook(len(LEVELS_MS)))
        self.store.on_arrival(self.schedule.on_appended)
        self.schedule.start()
        self.timers.start()

    @staticmethod
    def _run_blocking(work: Callable[[], None]) -> None:
        try:
            work()
        except AerobeeError:
            return

    def stop_cleanly(self) -> None:
        self.timers.stop()
        self.schedule.stop()
        self.store.flush_now()
        self.schedule.save()
        self.timers.save()
        self.timers.close()
        self.store.flush_queues_now()
        self.disk.crash()

    # --- what producers do

    def send(self) -> None:
        rng, now = self.rng, self.clock.now_ms()
        number = len(self.sent)
        properties = {"UNIQ_KEY": f"K{number}", "TAGS": "t"}
        kind = rng.randrange(5)
        if kind == 0:
            level = rng.randint(1, 3)
            properties["DELAY"] = str(level)
            due = now + LEVELS_MS[level - 1]
        else:
            delay = rng.choice((0, 50, 999, 1000, rng.randrange(3_000), rng.randrange(MAX_DELAY_MS)))
            if kind == 1:
                delay = delay // 1000 * 1000
                properties["TIMER_DELAY_SEC"] = str(delay // 1000)
            elif kind == 2:
                properties["TIMER_DELAY_MS"] = str(delay)
            else:
                properties["TIMER_DELIVER_MS"] = str(now + delay)
            due = now + delay
        message = StoredMessage(
            topic=TOPIC,
            queue_id=rng.randrange(2),
            body=b"%d:" % number + b"x" * rng.choice((0, 30, 400)),
            properties=encode_properties(properties).encode(),
            born_host=HOST,
            born_timestamp=now,
        )
        try:
            result = self.writer.put(message, properties)
        except StoreError:
            return
        out = properties.get("TIMER_OUT_MS")
        handle = RecallHandle(TOPIC, "broker-a", int(out) + 1, f"K{number}").encode() if out else ""
        sent = self.sent[number] = Sent(number, due, handle, is_moment="TIMER_DELIVER_MS" in properties)
        self.store.flushed.when(result.end, lambda ok: setattr(sent, "is_durable", ok or sent.is_durable))

    def set_clock(self) -> None:
        """Set the wall clock: right, or wrong by seconds to decades, ahead or back."""
        rng = self.rng
        self.is_set = True
        by_ms = rng.choice(STEPS_MS) + rng.randrange(3_000)
        self.clock.set_by_ms = rng.choice((0, by_ms, by_ms, -by_ms))

    def recall(self) -> None:
        """Cancel one that is not due yet, as a client does."""
        waiting = [s for s in self.sent.values() if s.handle and s.due_ms > self.clock.now_ms()]
        if not waiting:
            return
        sent = self.rng.choice(waiting)
        connection = SimpleNamespace(host_port=("127.0.0.1", 1))
        request = RemotingCommand(
            RequestCode.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": sent.handle, "producerGroup": "g"}
        )
        before = self.store.log.end
        self.timers.handlers()[RequestCode.RECALL_MESSAGE](cast(Any, connection), request)
        if self.store.log.end > before:
            self.store.flushed.when(self.store.log.end, lambda ok: self._recalled(sent) if ok else None)

    def _recalled(self, sent: Sent) -> None:
        begin = decode_recall_handle(sent.handle).timestamp_ms - 1
        sent.recalled_in_time = sent.recalled_in_time or self.clock.now_ms() < begin

    def work(self) -> None:
        """Some seconds of a running broker."""
        rng = self.rng
        for _ in range(rng.randint(2, 12)):
            for _ in range(rng.choice((0, 1, 1, 4))):
                self.send()
            if rng.random() < 0.2:
                self.recall()
            if rng.random() < 0.6:
                self.store.flush_now()
            if rng.random() < 0.3:
                self.store.flush_queues_now()
            self.clock.advance(rng.choice((0, 0.001, 0.2, 0.7, 1.5, 4)))
            if rng.random() < 0.2:
                self.check_nobody_waits()

    # --- what must hold

    def records(self, topic: str) -> list[Record]:
        """Every record of a topic in the log, whatever its queue."""
        found = []
        for (name, _), queue in self.store.queues.items():
            if name == topic:
                for at in range(queue.min_offset, queue.max_offset):
                    entry = queue.entry(at)
                    assert isinstance(entry, tuple)
                    data = self.store.log.read(entry[0], entry[1])
                    found.append(decode_record(data))
        return found

    def deliveries(self) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {}
        for record in self.records(TOPIC):
            found.setdefault(int(record.body.split(b":")[0]), []).append(record)
        return found

    def check(self) -> None:
        """At any time: never twice, never early."""
        for number, records in self.deliveries().items():
            assert len(records) == 1, f"message {number} was delivered {len(records)} times"
            due = self.sent[number].due_ms
            assert self.is_set or records[0].store_timestamp >= due, (
                f"{number} was delivered at {records[0].store_timestamp}, due {due}"
            )

    def check_nobody_waits(self) -> None:
        """While a broker runs, due messages have been delivered."""
        if self.is_set:
            return
        for _ in range(8):  # what was stored again is delivered when it is safe itself
            self.store.flush_now()
            self.clock.advance(0.001)
        delivered, now = self.deliveries(), self.clock.now_ms()
        recalled = self.recalled()
        for number, sent in self.sent.items():
            if sent.is_durable and sent.due_ms < now - 10 and f"K{number}" not in recalled:
                assert number in delivered, f"message {number}, due {sent.due_ms}, has not come at {now}"

    def recalled(self) -> set[str]:
        """Unique keys of the cancelled messages."""
        return {
            record.properties["TIMER_DEL_UNIQKEY"]
            for record in self.records(WHEEL_TIMER_TOPIC)
            if "TIMER_DEL_UNIQKEY" in record.properties
        }

    def check_all_arrived(self) -> None:
        """In the end: what the log has or was promised was delivered, unless it was recalled."""
        recalled = self.recalled()
        stored = {
            int(record.body.split(b":")[0])
            for topic in (WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC)
            for record in self.records(topic)
            if "TIMER_DEL_UNIQKEY" not in record.properties
            # A power loss can take up to three bytes of a sector from the end of a record that was not safe yet.
            and record.properties.get("REAL_QID", "").isdigit()
        }
        delivered = self.deliveries()
        for number, sent in self.sent.items():
            if sent.recalled_in_time:
                assert f"K{number}" in recalled, f"the recall of {number} is lost"
                assert number not in delivered, f"message {number} was recalled and delivered"
            elif self.is_set and sent.is_moment and sent.due_ms > self.clock.now_ms():
                continue  # the clock was ahead when it was sent, and its moment is still to come
            elif f"K{number}" not in recalled and (number in stored or sent.is_durable):
                assert number in delivered, f"message {number}, due {sent.due_ms}, never came"
        info = self.timers.runtime_info()
        assert info["timerOffsetBehind"] == "0"


def crashes(seed: int) -> None:
    """Stops of every kind, between and inside any of the broker's calls of the disk."""
    world = World(seed)
    try:
        _live(world)
    finally:
        world.let_go()


def clocks(seed: int) -> None:
    """A broker that dies now and then while its wall clock is set, ahead and back; in the end it is right."""
    world = World(seed)
    rng = world.rng
    try:
        for _ in range(LIVES):
            if rng.random() < 0.5:
                world.set_clock()
            world.start(rng.choice((0, 0.1, 3)))
            for _ in range(rng.randint(1, 4)):
                for _ in range(rng.choice((0, 1, 1, 4))):
                    world.send()
                if rng.random() < 0.6:
                    world.store.flush_now()
                world.clock.advance(rng.choice((0, 0.2, 1.5, 4, 12)))
                if rng.random() < 0.5:
                    world.set_clock()
                world.check()
            if rng.random() < 0.3:
                world.stop_cleanly()
            elif rng.random() < 0.5:
                world.disk.crash()
            else:
                world.disk.power_loss()
        world.start(1)
        if rng.random() < 0.5:
            world.clock.advance(1)
        world.clock.set_by_ms = 0
        drain(world)
    finally:
        world.let_go()


def _live(world: World) -> None:
    rng = world.rng
    for _ in range(LIVES):
        kind = rng.choice(("clean", "kill", "power", "cut"))
        if kind == "cut":
            world.disk.cut_power_at(rng.choice((5, 50, 200, 1000)) + rng.randrange(50))
        try:
            world.start(rng.choice((0, 0.1, 3, 40)))
            world.check()
            world.work()
            world.check()
            if kind == "clean":
                world.stop_cleanly()
        except PowerCut:
            kind = "cut"
        if kind == "kill":
            world.disk.crash()
        elif kind != "clean":
            world.disk.power_loss()
    world.start(1)
    drain(world)


def drain(world: World) -> None:
    """Let every timer come, and check that each came once."""
    for _ in range(12):
        world.store.flush_now()
        world.clock.advance(MAX_DELAY_MS / 4_000)
    world.store.flush_now()
    world.clock.advance(1)
    world.check()
    world.check_all_arrived()


if __name__ == "__main__":
    first, count = 1, int(sys.argv[1])
    for seed in range(first, first + count):
        try:
            crashes(seed)
        except BaseException:
            print(f"seed {seed}")
            raise
    print(f"{count} runs: nothing early, nothing lost, nothing twice")
