"""The cores of ordered consumption: what is handed out next, and how long a lock may be trusted."""

from __future__ import annotations

import random

import pytest

from aerobee.client.base.received import ReceivedMessage, decode_messages
from aerobee.client.base.verdict import RetryLater, give_back_after, level_for
from aerobee.client.consumer.ordered_queue import NEXT, Event, OrderedQueue, OrderPolicy, State
from aerobee.client.consumer.process_queue import ProcessQueue
from aerobee.client.consumer.queue_locks import QueueLocks
from aerobee.client.producer.message_group import with_message_group
from aerobee.client.session.send_header import properties_text
from aerobee.errors import UsageError
from aerobee.message import Message, MessageQueue, encode_record, pack_host

QUEUE = MessageQueue("T", "broker-a", 0)


def message(offset: int) -> ReceivedMessage:
    record = encode_record(
        topic=b"T", queue_id=0, queue_offset=offset, physical_offset=offset * 100, body=b"%d" % offset, properties=b"",
        born_timestamp=1, born_host=pack_host("10.0.0.1", 1), store_timestamp=2, store_host=pack_host("10.0.0.2", 2),
    )  # fmt: skip
    return decode_messages(record, QUEUE)[0]


def filled(policy: OrderPolicy, count: int) -> tuple[OrderedQueue, ProcessQueue]:
    ordered, process = OrderedQueue(policy), ProcessQueue(0)
    messages = [message(offset) for offset in range(count)]
    for each in messages:
        process.put(each.queue_offset, each.size_bytes)
    ordered.put(process, messages)
    return ordered, process


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_one_batch_is_out_at_a_time_and_finishing_it_moves_the_offset() -> None:
    ordered, process = filled(OrderPolicy(batch_size=2), 3)
    assert offsets(ordered.take(0)) == [0, 1]
    assert ordered.take(0) == []
    ordered.succeeded()
    assert process.commit_offset == 2
    assert offsets(ordered.take(0)) == [2]
    ordered.succeeded()
    assert ordered.take(0) == []
    assert not ordered.has_work


def test_a_failure_suspends_the_queue_and_counts_the_try() -> None:
    ordered, process = filled(OrderPolicy(suspend_s=1.0), 2)
    (first,) = ordered.take(0)
    assert not ordered.failed(0, retry_count_max=16)
    assert ordered.take(0.9) == []
    assert ordered.wait_s(0.9) == pytest.approx(0.1)
    (again,) = ordered.take(1.0)
    assert again is first
    assert again.reconsume_times == 1
    assert process.commit_offset == 0
    ordered.succeeded()
    assert (ordered.tries, ordered.blocked_since, ordered.wait_s(1.0)) == (0, None, None)
    assert offsets(ordered.take(1.0)) == [1]


def test_a_handler_chooses_the_pause() -> None:
    ordered, _ = filled(OrderPolicy(suspend_s=1.0), 1)
    ordered.take(0)
    ordered.failed(0, after_s=60, retry_count_max=16)
    assert ordered.take(59.9) == []
    assert offsets(ordered.take(60)) == [0]


def test_after_the_tries_a_message_is_given_up() -> None:
    ordered, process = filled(OrderPolicy(suspend_s=1.0), 2)
    for now in (0, 1, 2):
        assert offsets(ordered.take(now)) == [0]
        assert ordered.failed(now, retry_count_max=2) is (now == 2)
    assert ordered.take(3) == []
    # It could not be put with the dead letters: the queue waits and hands it out again.
    ordered.suspend(2, 5.0)
    assert offsets(ordered.take(7)) == [0]
    assert ordered.failed(7, retry_count_max=2)
    ordered.succeeded()
    assert process.commit_offset == 1
    assert offsets(ordered.take(7)) == [1]


def test_after_its_time_a_message_is_given_up() -> None:
    ordered, _ = filled(OrderPolicy(suspend_s=1.0, block_max_s=2.5), 1)
    outcomes = []
    for now in (10, 11, 12, 13):
        ordered.take(now)
        outcomes.append(ordered.failed(now, retry_count_max=1000))
    assert outcomes == [False, False, False, True]


def test_without_dead_letters_it_blocks_for_ever() -> None:
    ordered, _ = filled(OrderPolicy(suspend_s=1.0, block_max_s=1, dead_letters=False), 1)
    for now in range(100):
        assert offsets(ordered.take(now)) == [0]
        assert not ordered.failed(now, retry_count_max=0)


def test_a_rejected_message_is_given_up_at_once() -> None:
    ordered, _ = filled(OrderPolicy(), 1)
    ordered.take(0)
    assert ordered.failed(0, dead=True, retry_count_max=16)


def test_a_failing_batch_is_tried_one_by_one() -> None:
    ordered, process = filled(OrderPolicy(batch_size=3, suspend_s=0.0), 5)
    assert offsets(ordered.take(0)) == [0, 1, 2]
    assert not ordered.failed(0, dead=True, retry_count_max=0)
    seen = []
    for _ in range(3):
        (single,) = ordered.take(0)
        seen.append(single.queue_offset)
        if single.queue_offset == 1:
            assert ordered.failed(0, retry_count_max=0)
        ordered.succeeded()
    assert seen == [0, 1, 2]
    assert process.commit_offset == 3
    assert offsets(ordered.take(0)) == [3, 4]


def test_messages_of_a_queue_that_was_given_away_are_dropped() -> None:
    ordered, process = filled(OrderPolicy(suspend_s=0.0), 3)
    ordered.take(0)
    ordered.failed(0, retry_count_max=16)
    process.dropped = True
    assert ordered.take(1) == []
    newer = ProcessQueue(7)
    newer.put(7, 1)
    ordered.put(newer, [message(7)])
    assert offsets(ordered.take(1)) == [7]
    ordered.succeeded()
    assert newer.commit_offset == 8


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_what_is_not_in_the_table_is_refused(state: State, event: Event) -> None:
    ordered = OrderedQueue(OrderPolicy())
    ordered.state = state
    if (state, event) in NEXT:
        ordered._step(event)
        assert ordered.state is NEXT[state, event]
    else:
        with pytest.raises(UsageError):
            ordered._step(event)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_messages_are_handed_out_in_order(seed: int) -> None:
    rng = random.Random(seed)
    policy = OrderPolicy(batch_size=rng.choice((1, 1, 3)), suspend_s=1.0, dead_letters=True)
    bound = rng.randrange(3)
    ordered, process = filled(policy, 30)
    now, finished = 0.0, 0
    while ordered.has_work:
        batch = offsets(ordered.take(now))
        if not batch:
            wait_s = ordered.wait_s(now)
            assert wait_s is not None
            now += wait_s
            continue
        assert batch == list(range(finished, finished + len(batch)))
        if rng.random() < 0.4:
            if not ordered.failed(now, dead=rng.random() < 0.2, retry_count_max=bound):
                continue
            if rng.random() < 0.3:
                ordered.suspend(now)
                continue
        ordered.succeeded()
        finished += len(batch)
        assert process.commit_offset == finished
    assert finished == 30


def test_a_lock_is_trusted_from_when_it_was_asked_for() -> None:
    locks = QueueLocks(lease_s=30)
    assert not locks.may_act(QUEUE, 0)
    locks.granted([QUEUE], asked_at=100)
    assert locks.may_act(QUEUE, 129.9)
    assert not locks.may_act(QUEUE, 130)
    assert locks.lapsed(129.9) == []
    assert locks.lapsed(130) == [QUEUE]
    assert locks.next_end == 130
    assert locks.renew_interval_s == 20


def test_an_answer_that_was_overtaken_does_not_shorten_a_lease() -> None:
    locks = QueueLocks(lease_s=30)
    locks.granted([QUEUE], asked_at=100)
    locks.granted([QUEUE], asked_at=90)
    assert locks.renewed_at(QUEUE) == 100
    locks.forget(QUEUE)
    assert (locks.held, locks.next_end, locks.renewed_at(QUEUE)) == ([], None, None)


@pytest.mark.parametrize(
    ("after", "level"), [(0, 1), (0.5, 1), (1, 1), (1.1, 2), (30, 4), (31, 5), (7200, 18), (9999, 18)]
)
def test_a_pause_is_never_shorter_than_asked_for(after: float, level: int) -> None:
    assert level_for(after) == level
    assert RetryLater(after=after).delay_level == level


def test_a_retry_is_either_a_level_or_a_time() -> None:
    with pytest.raises(UsageError):
        RetryLater(delay_level=2, after=1)
    with pytest.raises(UsageError):
        RetryLater(after=-1)


def test_an_error_becomes_one_bounded_line() -> None:
    verdict = give_back_after(ValueError("a\nb " + "x" * 5000))
    assert verdict.error.startswith("ValueError: a b xxx")
    assert len(verdict.error) == 1024
    assert not verdict.is_dead


def test_a_priority_and_a_sharding_key_travel_as_properties() -> None:
    text = properties_text(Message("T", b"x", priority=3), "U")
    assert "_SYS_MSG_PRIORITY_\x013\x02" in text
    assert "_SYS_MSG" not in properties_text(Message("T", b"x"), "U")
    with pytest.raises(UsageError, match="priority is -2"):
        Message("T", b"x", priority=-2)
    assert with_message_group(Message("T", b"x"), 7).properties == {"__SHARDINGKEY": "7"}
    own = Message("T", b"x", properties={"__SHARDINGKEY": "mine"})
    assert with_message_group(own, 7) is own
