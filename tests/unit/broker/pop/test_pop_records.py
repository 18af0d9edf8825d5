"""What POP writes natively to the timer's topic is what the Python code writes, byte for byte."""

from __future__ import annotations

import random

import pytest

from aerobee.broker.fastpath.choice import NATIVE, choose_backend
from aerobee.broker.pop.check_point import Acks, CheckPoint
from aerobee.broker.pop.revive_log import ReviveLog
from aerobee.clock import ManualClock
from aerobee.errors import StoreFull, StoreNotWritable
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.message_store import MessageStore
from aerobee.system_names import WHEEL_TIMER_TOPIC
from tests.simulation.store_world import InlineExecutor

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
NOW_MS = 1_700_000_000_000
QUEUE = (WHEEL_TIMER_TOPIC, 0)
NAMES = (
    "orders",
    "%RETRY%g+orders",
    "%RETRY%g_orders",
    "g",
    "broker-a",
    'with "quotes"',
    "back\\slash",
    "主题",
    "a\tb",
)

pytestmark = pytest.mark.skipif(choose_backend().name != NATIVE, reason="the native backend is not installed")


class Written:
    """A store and the log that writes to it."""

    def __init__(self, *, natively: bool, flush: str, waiting: set[tuple[str, int]]) -> None:
        config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=16_384,
            mapped_file_size_consume_queue=400,
            commit_log_reserve_bytes=1_024,
            flush_disk_type=flush,
        )
        self.disk = SimulatedDisk(random.Random(1))
        self.store = MessageStore(
            config,
            disk=self.disk,
            clock=ManualClock(NOW_MS),
            executor=InlineExecutor(),
            store_host=lambda: HOST,
        )
        self.store.load()
        self.told: list[tuple[str, int, int, int]] = []
        self.pauses: list[float] = []
        self.store.on_arrival(lambda *what: self.told.append(what))
        self.log = ReviveLog(
            store=self.store,
            cluster="c",
            host=HOST,
            waiting=waiting,
            on_timer_messages=self.pauses.append,
            make_records=choose_backend().make_pop_records if natively else None,
        )

    def content(self) -> tuple[object, ...]:
        """Everything that can be seen of what was written."""
        store = self.store
        queues = {
            key: [
                (entry, store.log.read(entry[0], entry[1]))
                for at in range(queue.max_offset)
                if (entry := queue.entry(at)) is not None
            ]
            for key, queue in store.queues.items()
        }
        numbers = (store.log.end, store.last_record_offset, store.last_store_timestamp)
        readable = {key: queue.readable_max for key, queue in store.queues.items()}
        return queues, numbers, readable, dict(self.log.written), list(self.told), list(self.pauses)


def point(rng: random.Random) -> tuple[CheckPoint, int]:
    start = rng.choice((0, 5, 2**40))
    offsets = tuple(sorted(rng.sample(range(start, start + 40), rng.choice((1, 1, 2, 32)))))
    made = CheckPoint(
        topic=rng.choice(NAMES),
        group=rng.choice(NAMES),
        queue_id=rng.randrange(9),
        start_offset=offsets[0],
        offsets=offsets,
        pop_time=NOW_MS - rng.randrange(3_000),
        invisible_ms=rng.choice((0, 1, 999, 1_000, 1_001, 3_000, 60_000, 259_200_000)),
        broker_name=rng.choice(("broker-a", "broker-a", "b")),
        bit_map=rng.choice((0, 0, 1, 2**31)),
        suspend=rng.random() < 0.2,
        re_put_times=rng.choice((0, 0, 0, 0, 0, 0, 2)),
    )
    return made, rng.randrange(8)


def acks(rng: random.Random) -> tuple[Acks, int, int]:
    made, revive_queue_id = point(rng)
    of_it = Acks(
        topic=made.topic,
        group=made.group,
        queue_id=made.queue_id,
        start_offset=made.start_offset,
        pop_time=made.pop_time,
        broker_name=made.broker_name,
        offsets=made.offsets,
    )
    return of_it, revive_queue_id, made.revive_time


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("waiting", [set(), {QUEUE}], ids=["no waiter", "one waiter"])
@pytest.mark.parametrize("seed", range(12))
def test_both_write_the_same(seed: int, waiting: set[tuple[str, int]], flush: str) -> None:
    rng = random.Random(seed)
    plain, native = (Written(natively=natively, flush=flush, waiting=waiting) for natively in (False, True))
    for _ in range(30):  # over the ends of queue and log files
        points = [point(rng) for _ in range(rng.choice((0, 1, 1, 2, 4)))]
        given = [acks(rng) for _ in range(rng.choice((0, 0, 1, 1, 9)))]
        ends = [each.log.append(NOW_MS, points, given) for each in (plain, native)]
        assert ends[0] == ends[1]
        assert plain.content() == native.content()
        if flush == "SYNC_FLUSH" and rng.random() < 0.3:
            for each in (plain, native):
                each.store.flush_now()


def test_the_native_part_does_the_writing() -> None:
    written = Written(natively=True, flush="ASYNC_FLUSH", waiting=set())
    rng = random.Random(1)
    plain = CheckPoint(
        topic="orders", group="g", queue_id=0, start_offset=0, offsets=(0,), pop_time=NOW_MS, invisible_ms=60_000,
        broker_name="broker-a",
    )  # fmt: skip
    written.log.append(NOW_MS, [(plain, 1)])  # makes the queue
    written.log.own.append = None  # type: ignore[assignment, method-assign]
    end = written.log.append(NOW_MS, [(plain, rng.randrange(8))] * 3)
    assert end == written.store.log.end
    assert written.store.queues[QUEUE].max_offset == 4


@pytest.mark.parametrize("natively", [False, True])
def test_what_the_store_refuses_is_not_written(natively: bool) -> None:
    written = Written(natively=natively, flush="ASYNC_FLUSH", waiting=set())
    rng = random.Random(3)
    first = CheckPoint(
        topic="orders", group="g", queue_id=0, start_offset=0, offsets=(0,), pop_time=NOW_MS, invisible_ms=60_000,
        broker_name="broker-a",
    )  # fmt: skip
    written.log.append(NOW_MS, [(first, 1)])
    written.disk.total_bytes = 1
    before = written.content()[:4]
    for _ in range(1_000):
        try:
            written.log.append(NOW_MS, [(first, rng.randrange(8))] * 5)
        except StoreFull:
            break
        before = written.content()[:4]
    else:
        pytest.fail("the disk was never full")
    assert written.content()[:4] == before, "all of it or nothing"
    written.store.writability.close("the disk failed")
    with pytest.raises(StoreNotWritable, match="the disk failed"):
        written.log.append(NOW_MS, [(first, 1)])
    assert written.content()[:4] == before
