"""One run of a broker's recurring schedules on a simulated disk, from a seed.

The real store and the real feature run on virtual time; the broker dies at any point, also inside a call of the disk, old
files of the log expire, and operators create, pause, resume and delete schedules. The log is the judge: every tick of a
schedule is in it once, in order, none before its time.
"""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.recurring.schedule_feature import RecurringSchedules
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import Role, RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import ManualClock
from aerobee.errors import RemoteError
from aerobee.message import decode_record
from aerobee.property_names import SCHEDULE_NAME, SCHEDULE_TICK
from aerobee.recurrence import Recurrence
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system_names import RECURRING_TOPIC
from tests.simulation.timer_world import HOST, InlineExecutor

TOPIC, QUEUES = "ticks", 2
LIVES = 5
CRONS = ("*/3 * * * * *", "* * * * *", "*/7 */2 * * * *")


class Defined:
    """What an operator knows of one schedule."""

    def __init__(self, recurrence: Recurrence, *, latest: bool) -> None:
        self.recurrence = recurrence
        self.latest = latest  # only the last missed tick is wanted
        self.is_durable = False
        self.was_paused = False  # then ticks may be missing
        self.is_gone = False  # a deletion was requested


class Delivery(NamedTuple):
    """A message of a schedule in the log."""

    queue_id: int
    name: str
    tick_ms: int
    stored_ms: int


class World:
    """A broker's store and schedules, and what operators asked for."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = SimulatedDisk(self.rng, now_ms=lambda: self.clock.now_ms())
        self.config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=self.rng.choice((65_536, 131_072)),
            mapped_file_size_consume_queue=self.rng.choice((400, 2_000)),
            message_index_enable=False,
            max_hash_slot_num=16,
            max_index_num=64,
            commit_log_reserve_bytes=4_096,
            flush_disk_type=self.rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
            file_reserved_time=0,
        )
        self.defined: dict[str, Defined] = {}
        self.seen: dict[int, Delivery] = {}  # by physical offset, expired ones included
        self.expired = 0
        self.expires_below = 0  # the store was asked to delete the files below this physical offset
        self.store: MessageStore
        self.feature: RecurringSchedules

    # --- run

    def start(self, down_s: float) -> None:
        """Open everything after some time without a broker."""
        self.clock = ManualClock(self.clock.now_ms() + round(down_s * 1000))
        self.store = MessageStore(
            self.config, disk=self.disk, clock=self.clock, executor=InlineExecutor(), store_host=lambda: HOST
        )
        self.store.load()
        topics = TopicTable(file=None, clock=self.clock)
        topics.topics = {TOPIC: TopicConfig(TOPIC, QUEUES, QUEUES)}
        parts = SimpleNamespace(
            store=self.store,
            topics=topics,
            mappings={},
            stats=BrokerStats(clock=self.clock, cluster="c"),
            identity=BrokerIdentity(
                cluster="c",
                name="broker-a",
                broker_id=0,
                address="127.0.0.1:10911",
                ha_address="127.0.0.1:10912",
                store_host=HOST,
            ),
            role=RoleState(Role.MASTER, "of the test"),
            clock=self.clock,
            ack=SimpleNamespace(answer=lambda peer, reply, end, **_: end),
        )
        self.feature = RecurringSchedules(cast(BrokerParts, parts))
        self.feature.load()
        self.feature.start()

    def stop_cleanly(self) -> None:
        self.feature.stop()
        self.store.flush_now()
        self.store.flush_queues_now()
        self.disk.crash()

    # --- what operators do

    def ask(self, code: RequestCode, body: bytes = b"", **ext: str) -> Any:
        handler = self.feature.handlers()[code]
        return handler(cast(Any, SimpleNamespace()), RemotingCommand(code, ext, body))

    def create(self) -> None:
        rng = self.rng
        name, jitter = f"S{len(self.defined)}", rng.choice((0, 0, 700))
        interval = rng.choice((0, 150, 1_000, 3_700))
        cron = "" if interval else rng.choice(CRONS)
        latest = rng.random() < 0.3
        self.define(
            name,
            cron=cron,
            interval_ms=interval,
            jitter_ms=jitter,
            latest=latest,
            body=b"x" * rng.choice((1, 200)),
        )

    def define(
        self,
        name: str,
        *,
        cron: str = "",
        interval_ms: int = 0,
        jitter_ms: int = 0,
        latest: bool = False,
        body: bytes = b"x",
    ) -> None:
        """Create this schedule."""
        recurrence = Recurrence(
            name=name, cron=cron, interval_ms=interval_ms, anchor_ms=self.clock.now_ms(), jitter_ms=jitter_ms
        )
        defined = self.defined[name] = Defined(recurrence, latest=latest)
        end = self.ask(
            RequestCode.AEROBEE_CREATE_SCHEDULE,
            body,
            name=name,
            topic=TOPIC,
            cron=cron,
            intervalMs=str(interval_ms),
            jitterMs=str(jitter_ms),
            missed="latest" if latest else "all",
        )
        self.store.flushed.when(end, lambda ok: setattr(defined, "is_durable", ok or defined.is_durable))

    def change(self) -> None:
        name = self.rng.choice(list(self.defined) or ["none"])
        action = self.rng.choice(("pause", "resume", "resume", "delete"))
        if name in self.defined:
            self.defined[name].was_paused |= action == "pause"
            self.defined[name].is_gone |= action == "delete"
        if name in self.feature._table.schedules:
            self.ask(RequestCode.AEROBEE_CHANGE_SCHEDULE, name=name, action=action)
        else:
            with pytest.raises(RemoteError, match="has no schedule"):
                self.ask(RequestCode.AEROBEE_CHANGE_SCHEDULE, name=name, action=action)

    def send(self) -> None:
        """Another message, so that records lie between those of schedules."""
        self.store.append(
            StoredMessage(
                topic="orders",
                queue_id=0,
                body=b"y" * self.rng.choice((10, 900)),
                properties=b"",
                born_host=HOST,
            )
        )

    def expire(self) -> None:
        """Delete every file of the log but the newest one, when it has been that for ten seconds; the feature looks at
        its records in that time, and files are kept for an hour at least."""
        newest = self._newest()
        self.clock.advance(10.5)
        if self._newest() != newest:
            return
        self.look()
        before, self.expires_below = self.store.log.min_offset, max(newest, 0)
        asyncio.run(self.store.delete_expired())
        self.expired += self.store.log.min_offset > before

    def _newest(self) -> int:
        segment = self.store.log.segment_at(self.store.log.end - 1)
        return segment.base if segment is not None else -1

    def work(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(2, 10)):
            for _ in range(rng.choice((0, 1, 5))):
                self.send()
            if len(self.defined) < 6 and rng.random() < 0.3:
                self.create()
            if rng.random() < 0.15:
                self.change()
            if rng.random() < 0.6:
                self.store.flush_now()
            if rng.random() < 0.3:
                self.store.flush_queues_now()
            self.clock.advance(rng.choice((0.001, 0.2, 1.5, 4, 12)))
            if rng.random() < 0.2:
                self.expire()

    # --- damage

    def damage_newest_ticks(self) -> set[str]:
        """Change a byte in the record of each schedule's last tick; returns the names of these schedules."""
        queue, damaged = self.store.queues[(RECURRING_TOPIC, 0)], set()
        for offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
            start, size, *_ = queue.entry(offset)  # type: ignore[misc]
            record = decode_record(self.store.log.read(start, size))
            fields = json.loads(record.body)
            if fields["kind"] == "tick" and fields["name"] not in damaged:
                damaged.add(fields["name"])
                segment = self.store.log.segment_at(start)
                assert segment is not None
                segment.file.buffer[start - segment.base + size // 2] ^= 1
        return damaged

    def restart_feature(self) -> None:
        """As a master that begins to lead, on the open store."""
        self.feature.stop()
        self.feature.load()
        self.feature.start()

    # --- what must hold

    def look(self) -> None:
        """Read the deliveries that the log has now. Those that expired stay known: a queue begins behind them, also after a
        loss of power that brought back the file of the log in which they were.
        """
        first, found, begins = self.store.log.min_offset, {}, {}
        for queue_id in range(QUEUES):
            queue = self.store.queues.get((TOPIC, queue_id))
            for offset in range(queue.min_offset, queue.max_offset) if queue is not None else ():
                start, size, *_ = queue.entry(offset)  # type: ignore[misc, union-attr]
                if start >= first:
                    record = decode_record(self.store.log.read(start, size))
                    name, tick = record.properties[SCHEDULE_NAME], int(record.properties[SCHEDULE_TICK])
                    found[start] = Delivery(queue_id, name, tick, record.store_timestamp)
                    begins.setdefault(queue_id, start)
        for at, each in self.seen.items():
            begin = min(begins.get(each.queue_id, self.store.log.end), self.expires_below)
            if at < first or at < begin:
                found[at] = each
        self.seen = found

    def ticks(self, name: str) -> list[int]:
        return [each.tick_ms for _, each in sorted(self.seen.items()) if each.name == name]

    def check(self) -> None:
        """At any time: each tick once, in order, without a gap, none early."""
        self.look()
        for _, name, tick, stored_ms in self.seen.values():
            due = self.defined[name].recurrence.due_ms(tick)
            assert stored_ms >= due, f"{name}: tick {tick}, due {due}, stored {stored_ms}"
        for name, defined in self.defined.items():
            last = defined.recurrence.anchor_ms
            for tick in self.ticks(name):
                assert tick > last, f"{name}: tick {tick} behind {last}"
                if not defined.latest and not defined.was_paused:
                    assert tick == defined.recurrence.next_after(last), (
                        f"{name}: a gap between {last} and {tick}"
                    )
                last = tick

    def check_in_the_end(self) -> None:
        """Every durable schedule is there, and has delivered what was due."""
        self.check()
        table, now = self.feature._table, self.clock.now_ms()
        for name, defined in self.defined.items():
            if defined.is_durable and not defined.is_gone:
                assert name in table.schedules, f"schedule {name} is lost"
            if name in table.schedules and not table.schedules[name].is_paused:
                ticks = self.ticks(name)
                last = ticks[-1] if ticks else table.schedules[name].last_tick_ms
                following = defined.recurrence.next_after(max(last, table.schedules[name].last_tick_ms))
                assert defined.recurrence.due_ms(following) > now - 5, (
                    f"{name}: tick {following} has not come at {now}"
                )


def crashes(seed: int) -> World:
    """Stops of every kind, between and inside any of the broker's calls of the disk."""
    world = World(seed)
    rng = world.rng
    for _ in range(LIVES):
        kind = rng.choice(("clean", "kill", "power", "power", "cut"))
        if kind == "cut":
            world.disk.cut_power_at(rng.choice((5, 50, 200, 1_000)) + rng.randrange(50))
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
    for _ in range(400):  # what was missed comes in passes
        world.clock.advance(0.05)
        world.store.flush_now()
    world.check_in_the_end()
    return world
