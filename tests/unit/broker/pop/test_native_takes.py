"""What a pop takes natively is what PopEngine.take() takes: the same reply, the same records, the same state."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.fastpath.choice import NATIVE, choose_backend
from aerobee.broker.fastpath.pop import found_reply
from aerobee.broker.pop.engine import PopEngine, PopWant
from aerobee.broker.pop.merge_buffer import MergeBuffer
from aerobee.errors import StoreFull, StoreNotWritable
from aerobee.message import tags_code
from aerobee.remoting.body.pop_handle import message_offset_info, start_offset_info
from aerobee.store.log.stored_message import StoredMessage
from tests.unit.broker.pop.test_pop_records import HOST, NOW_MS, Written

PLAIN, BATCHED, RETRY = "orders", "batched", "%RETRY%g+orders"
GROUPS = ("g", "群", 'with "quotes"')
QUEUES = 3
TAGS = ("a", "b", "")
POPS = int(os.environ.get("AEROBEE_POP_TAKES", "120"))

pytestmark = pytest.mark.skipif(choose_backend().name != NATIVE, reason="the native backend is not installed")


class Side:
    """A store with an engine over it."""

    def __init__(self, *, natively: bool, flush: str) -> None:
        self.written = Written(natively=True, flush=flush, waiting=set())
        self.natively = natively
        self.offsets = ConsumerOffsets(clock=self.written.store.appender.clock)
        self.engine = PopEngine(
            store=self.written.store,
            offsets=self.offsets,
            log=self.written.log,
            broker_name="broker-a",
            host=HOST,
        )
        self.native_count = 0

    def send(self, topic: str, queue_id: int, tag: str, size: int) -> None:
        store = self.written.store
        body = bytes(size)
        store.append_batch(
            (
                StoredMessage(
                    topic=topic,
                    queue_id=queue_id,
                    body=body,
                    properties=f"UNIQ_KEY\x01U{size}\x02TAGS\x01{tag}\x02".encode(),
                    born_host=HOST,
                    born_timestamp=NOW_MS,
                    tags_code=tags_code(tag),
                    index_keys=(),
                ),
            )
        )

    def pop(self, want: PopWant, now_ms: int, opaque: int) -> object:
        """The reply; None without messages, else what was raised."""
        engine = self.engine
        want = replace(want, retries=want.retries)
        try:
            if self.natively:
                plan = engine.plan_natively(want)
                taken = None if plan is None else engine.take_natively(plan, want, now_ms, opaque)
                if taken is not None:
                    self.native_count += 1
                    return taken[0], taken[3], taken[5], [each[:5] for each in taken[1]]
            found = engine.take(want, now_ms, self.written.store.is_cold)
        except (StoreFull, StoreNotWritable) as error:
            return type(error)
        if not found.count:
            return None
        reply = found_reply(
            opaque,
            f'"popTime":"{found.pop_time}","invisibleTime":"{want.invisible_ms}","reviveQid":"{found.revive_queue_id}",'
            f'"restNum":"{found.rest}","startOffsetInfo":"{start_offset_info(found.shares)}",'
            f'"msgOffsetInfo":"{message_offset_info(found.shares)}"',
            b"".join(found.bodies),
        )
        moved = [
            (
                topic,
                share.retry,
                share.queue_id,
                share.offsets,
                self.engine.position(want, topic, share.queue_id, keep=False),
            )
            for topic, share in zip(found.topics, found.shares, strict=True)
        ]
        return reply, found.end, found.rest, moved

    def state(self) -> tuple[object, ...]:
        out = sorted(
            (repr(entry.point), entry.consumer, entry.state.name) for entry in self.engine.in_flight.entries()
        )
        counts = [self.engine.in_flight.count(group, PLAIN) for group in GROUPS]
        return (
            self.written.content(),
            sorted(self.offsets.all_offsets()),
            out,
            counts,
            self.written.log.record_count,
            self.engine._revive_queue,
        )


def a_want(rng: random.Random) -> PopWant:
    codes = rng.choice((None, None, None, frozenset((tags_code("a"),)), frozenset(map(tags_code, TAGS))))
    return PopWant(
        topic=rng.choice((*[PLAIN] * 14, RETRY, "none")),
        group=rng.choice((*GROUPS[:1] * 12, *GROUPS)),
        queue_id=rng.choice((*[-1] * 6, *range(QUEUES), QUEUES)),
        queue_count=rng.choice((*[QUEUES] * 6, 0, QUEUES + 1)),
        count_max=rng.choice((1, 1, 2, 8, 32)),
        invisible_ms=rng.choice((0, 1_000, *[1_001, 60_000] * 6)),
        init_mode=rng.choice((0, 0, 1)),
        tag_codes=codes,
        accept=rng.choice((None,) * 9 + (bool,)),
        retries=rng.choice(((), (), ((RETRY, "2", 1),), ((RETRY, "1", 2),))),
        retry_first=rng.random() < 0.3,
        start=rng.randrange(9),
        highest_first=rng.random() < 0.1,
        consumer=rng.choice(("", "10.0.0.1:5")),
    )


def odd(rng: random.Random, *, uses_buffer: bool) -> Callable[[Side], None]:
    """Something that happens to both."""
    topic, queue_id, offset = PLAIN, rng.randrange(QUEUES), rng.choice((-1, 0, 1, 5, 10_000))
    group = GROUPS[
        0
    ]  # others may never take their resets, and while one is pending nothing is taken natively
    match rng.randrange(5):
        case 0:
            return lambda side: side.offsets.assign_reset(group, topic, {queue_id: max(offset, 0)})
        case 1:
            return lambda side: side.offsets.commit(group, topic, queue_id, offset)
        case 2:
            return lambda side: side.offsets.remove_topic(topic)
        case 3:
            return lambda side: side.engine.use_buffer(MergeBuffer() if side.engine.buffer is None else None)
        case _:
            return lambda side: side.written.store.flush_now()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", range(8))
def test_a_native_take_is_the_engines_take(seed: int, flush: str) -> None:
    rng = random.Random(seed)
    sides = [Side(natively=natively, flush=flush) for natively in (False, True)]
    now_ms = NOW_MS
    for number in range(POPS):
        for _ in range(rng.choice((0, 0, 1, 5, 20))):
            message = (
                rng.choice((*[PLAIN] * 24, RETRY)),
                rng.randrange(QUEUES),
                rng.choice(TAGS),
                rng.choice((0, 1, 128, 128, 700)),
            )
            for side in sides:
                side.send(*message)
        if rng.random() < 0.06:
            change = odd(rng, uses_buffer=seed % 4 == 3)
            for side in sides:
                change(side)
        if flush == "SYNC_FLUSH" and rng.random() < 0.5:
            for side in sides:
                side.written.store.flush_now()
        want, opaque = a_want(rng), rng.choice((0, number, -(2**31), 2**31 - 1))
        now_ms += rng.choice((0, 1, 700))
        assert sides[0].pop(want, now_ms, opaque) == sides[1].pop(want, now_ms, opaque)
        if rng.random() < 20 / POPS:
            assert sides[0].state() == sides[1].state()
    assert sides[0].state() == sides[1].state()
    assert sides[1].native_count > POPS // 12 or seed % 4 == 3


def test_a_native_take_hands_nothing_out_that_the_store_refuses() -> None:
    side = Side(natively=True, flush="ASYNC_FLUSH")
    want = PopWant(topic=PLAIN, group="g", queue_id=0, queue_count=1, count_max=1, invisible_ms=60_000)
    for _ in range(4):
        side.send(PLAIN, 0, "a", 10)
    assert side.pop(want, NOW_MS, 1) is not None, "the group's offset is known now, and the timer's queue"
    plan = side.engine.plan_natively(want)
    assert side.engine.take_natively(plan, want, NOW_MS, 2) is not None
    before = side.state()
    side.written.store.writability.close("the disk failed")
    with pytest.raises(StoreNotWritable, match="the disk failed"):
        side.engine.take_natively(plan, want, NOW_MS, 3)
    assert side.state() == before


@pytest.mark.parametrize("natively", [False, True])
def test_a_full_disk_leaves_the_messages_to_the_next_pop(natively: bool) -> None:
    side = Side(natively=natively, flush="ASYNC_FLUSH")
    want = PopWant(topic=PLAIN, group="g", queue_id=0, queue_count=1, count_max=1, invisible_ms=60_000)
    for _ in range(2_000):
        side.send(PLAIN, 0, "", 1)
    assert side.pop(want, NOW_MS, 0) is not None
    side.written.disk.total_bytes = 1
    for number in range(1, 2_000):
        before = side.offsets.query("g", PLAIN, 0), len(side.engine.in_flight)
        if side.pop(want, NOW_MS, number) is StoreFull:
            break
    else:
        pytest.fail("the disk was never full")
    assert (side.offsets.query("g", PLAIN, 0), len(side.engine.in_flight)) == before == (number, number)
