"""From facts to answers, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee.client import ReceivedMessage
from aerobee.client.admin.explain import InvisibleMessage, QueueLock, SubscriptionDifference
from aerobee.client.base.received import decode_messages
from aerobee.client.base.results import (
    ClientConnection,
    GroupConnections,
    GroupInfo,
    QueueProgress,
    SubscriptionInfo,
)
from aerobee.client.base.trace_record import TraceEvent, TraceKind
from aerobee.message import MessageQueue, encode_properties, encode_record, pack_host
from aerobee.ops.diagnosis.why_facts import GroupFacts, MessageFacts, Replica, TopicRates, Waiting
from aerobee.ops.diagnosis.why_rules import RANK, findings

NOW = 1_700_000_000_000
QUEUE = MessageQueue("orders", "broker-a", 0)
MEMBER = "10.0.0.1@one"


def group(**changes: object) -> GroupFacts:
    facts = GroupFacts(
        group="billing",
        now_ms=NOW,
        settings=(
            GroupInfo(
                name="billing",
                broker_address="b:1",
                consume_enabled=True,
                broadcast_enabled=True,
                orderly=False,
                retry_queue_count=1,
                retry_count_max=16,
            ),
        ),
        connections=GroupConnections(
            group="billing",
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from="CONSUME_FROM_LAST_OFFSET",
            connections=(ClientConnection(client_id=MEMBER, address="a", language="JAVA", version=513),),
            subscriptions=(
                SubscriptionInfo(topic="orders", expression="*", expression_type="TAG", version=1),
            ),
        ),
        differences=(),
        shared_ids=(),
        progress=(progress(5, 5),),
        topics=("orders",),
        missing_topics=(),
        rates={},
        locks=(),
        invisible=(),
        dead_count=0,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def progress(consumer: int, broker: int, *, pulled: int = 0, client: str = MEMBER) -> QueueProgress:
    return QueueProgress(
        queue=QUEUE,
        broker_offset=broker,
        consumer_offset=consumer,
        pull_offset=pulled,
        last_timestamp_ms=NOW - 1000,
        client_id=client,
    )


def copy(offset: int = 3, queue: MessageQueue = QUEUE, tries: int = 0, **properties: str) -> ReceivedMessage:
    record = encode_record(
        topic=queue.topic.encode(),
        queue_id=queue.queue_id,
        queue_offset=offset,
        physical_offset=offset,
        body=b"",
        properties=encode_properties({"UNIQ_KEY": "A1", **properties}).encode(),
        store_timestamp=NOW - 5000,
        born_host=pack_host("127.0.0.1", 1),
        store_host=pack_host("127.0.0.1", 2),
        reconsume_times=tries,
    )
    return decode_messages(record, queue)[0]


def message(**fields: object) -> MessageFacts:
    return MessageFacts(message_id="A1", searched=("orders",), **fields)  # type: ignore[arg-type]


def kinds(facts: GroupFacts, about: MessageFacts | None = None) -> list[str]:
    return [each.kind for each in findings(facts, about)]


def test_every_kind_that_a_rule_can_give_has_a_rank() -> None:
    assert len(set(RANK)) == len(RANK)


def test_all_well() -> None:
    assert kinds(group()) == ["well"]


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"settings": (), "connections": None, "progress": ()}, "no-group", "no broker knows group billing"),
        ({"connections": None}, "no-members", "no client consumes its messages"),
        ({"missing_topics": ("orders",)}, "no-topic", "orders does not exist"),
        ({"topics": ("orders", "other")}, "not-subscribed", "do not subscribe to topic other"),
        ({"dead_count": 1}, "dead-letters", "the group has 1 dead-letter message in topic"),
        (
            {"rates": {"orders": TopicRates(stored=2.0, handed_out=4.0)}, "progress": (progress(0, 20),)},
            "lag",
            "time to drain about 10.0 s",
        ),
        (
            {"rates": {"orders": TopicRates(stored=5.0, handed_out=4.0)}, "progress": (progress(0, 20),)},
            "lag",
            "not catching up",
        ),
        (
            {
                "differences": (
                    SubscriptionDifference(
                        topic="orders",
                        client_id="one",
                        expression="a",
                        other_client_id="two",
                        other_expression="b",
                    ),
                )
            },
            "conflict",
            "one to a, two to b",
        ),
    ],
)
def test_what_is_wrong_with_a_group(changes: dict[str, object], kind: str, words: str) -> None:
    (found,) = [each for each in findings(group(**changes), None) if each.kind == kind]
    assert words in found.text


def test_a_disabled_group() -> None:
    facts = group()
    facts = replace(facts, settings=(replace(facts.settings[0], consume_enabled=False),))
    assert kinds(facts) == ["disabled"]


def test_locks_matter_when_nothing_moves_or_their_holder_is_gone() -> None:
    lock = QueueLock(queue=QUEUE, client_id=MEMBER, since_ms=NOW - 90_000, age_ms=10_000, lease_ms=30_000)
    assert kinds(group(locks=(lock,))) == ["well"], "no message is blocked"
    assert "lock" in kinds(group(locks=(lock,), progress=(progress(1, 5),)))
    behind = progress(1, 5)
    assert "lock" not in kinds(group(locks=(replace(lock, since_ms=NOW - 5000),), progress=(behind,)))
    at_work = replace(behind, member_worked_ms=NOW - 5000)
    assert "lock" not in kinds(group(locks=(lock,), progress=(at_work,))), "its holder works on it"
    assert "lock" in kinds(group(locks=(lock,), progress=(at_work,)), message(stored=(copy(3),)))
    (found,) = findings(group(locks=(replace(lock, client_id="gone"),)), None)
    assert (
        "locked for 90.0 s by gone, which is not online; the lock expires in 20.0 s unless renewed"
        in found.text
    )


def test_behind_in_work_passed_and_never_consumed_from() -> None:
    about = message(stored=(copy(3),))
    assert kinds(group(progress=(progress(1, 5),)), about)[0] == "behind"
    assert kinds(group(progress=(progress(1, 5, pulled=4),)), about)[0] == "in-progress"
    assert kinds(group(), about)[0] == "passed"
    assert kinds(group(progress=()), about)[0] == "no-offset"


def test_filters_of_each_kind() -> None:
    facts = group()
    assert facts.connections is not None

    def with_expression(expression: str, kind: str) -> GroupFacts:
        assert facts.connections is not None
        item = SubscriptionInfo(topic="orders", expression=expression, expression_type=kind, version=1)
        return replace(facts, connections=replace(facts.connections, subscriptions=(item,)))

    tagged = message(stored=(copy(TAGS="refund", price="3"),))
    assert kinds(with_expression("paid || refund", "TAG"), tagged)[0] == "passed"
    assert kinds(with_expression("paid", "TAG"), tagged)[0] == "filtered"
    assert kinds(with_expression("price > 2", "SQL92"), tagged)[0] == "passed"
    assert kinds(with_expression("price > 5", "SQL92"), tagged)[0] == "filtered"
    waiting = replace(with_expression("paid", "TAG"), progress=(progress(3, 5),))
    assert "behind" not in kinds(waiting, tagged)
    assert "is invalid" in findings(with_expression("price >", "SQL92"), tagged)[0].text


def test_retries_that_wait_that_are_due_and_that_were_handed_out() -> None:
    retry_queue = MessageQueue("%RETRY%billing", "broker-a", 0)
    schedule = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 2)
    first = copy(3)
    waiting = copy(0, schedule, 2, REAL_TOPIC="%RETRY%billing", LAST_ERROR="ValueError: no")
    about = message(stored=(first,), waiting=(Waiting(waiting, NOW + 4000, "%RETRY%billing"),))
    found = findings(group(), about)[0]
    assert found.kind == "retry"
    assert "the message failed 2 times; retry 2 of 16 is due at" in found.text
    assert "last error: ValueError: no" in found.text
    retried = copy(7, retry_queue, 2)
    about = message(stored=(first,), retried=(retried,))
    at_retry = replace(progress(4, 9), queue=retry_queue)
    found = findings(group(progress=(progress(5, 5), at_retry)), about)[0]
    assert found.kind == "retry"
    assert "3 messages before it" in found.text
    at_retry = replace(progress(9, 9), queue=retry_queue)
    assert kinds(group(progress=(progress(5, 5), at_retry)), about)[0] == "passed"


def test_dead_letters_say_why() -> None:
    dead = copy(
        0,
        MessageQueue("%DLQ%billing", "broker-a", 0),
        16,
        DLQ_REASON="16 tries failed",
        DLQ_TRIES="17",
        LAST_ERROR="KeyError",
    )
    found = findings(group(), message(stored=(copy(),), dead=(dead,)))[0]
    assert found.kind == "dead-letter"
    assert "after 17 tries: 16 tries failed; last error: KeyError" in found.text


def test_before_a_message_is_stored() -> None:
    schedule = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 2)
    waiting = Waiting(copy(0, schedule, REAL_TOPIC="orders"), NOW + 4000, "orders")
    assert kinds(group(), message(waiting=(waiting,)))[0] == "delayed"
    assert kinds(group(), message(waiting=(replace(waiting, due_ms=NOW - 4000),)))[0] == "overdue"
    half = copy(0, MessageQueue("RMQ_SYS_TRANS_HALF_TOPIC", "broker-a", 0))
    assert kinds(group(), message(half=(half,)))[0] == "rolled-back"
    assert kinds(group(), message())[0] == "never-stored"
    sent = TraceEvent(kind=TraceKind.PUB, message_id="A1", time_ms=NOW, topic="orders")
    assert kinds(group(), message(trace=(sent,)))[0] == "gone"


def test_invisible_until_and_consumed_by_another_group_only() -> None:
    hidden = InvisibleMessage(
        queue=QUEUE,
        offset=3,
        popped_ms=NOW - 1000,
        visible_at_ms=NOW + 9000,
        client_id="c",
        ordered=False,
    )
    assert kinds(group(invisible=(hidden,)), message(stored=(copy(3),)))[0] == "invisible"
    other = TraceEvent(kind=TraceKind.SUB_AFTER, message_id="A1", time_ms=NOW, group="auditors", success=True)
    assert kinds(group(), message(stored=(copy(),), trace=(other,)))[0] == "passed"
    mine = replace(other, group="billing", request_id="R")
    assert kinds(group(), message(stored=(copy(),), trace=(mine,)))[0] == "consumed"


def test_popped_again_from_the_retry_topic() -> None:
    queue = MessageQueue("%RETRY%billing_orders", "broker-a", 0)
    hidden = InvisibleMessage(
        queue=queue, offset=0, popped_ms=NOW - 10, visible_at_ms=NOW + 9000, client_id=MEMBER, ordered=False
    )
    again = copy(0, queue, 1, **{"1ST_POP_TIME": "1"})
    (found, *_) = findings(group(invisible=(hidden,)), message(stored=(copy(),), retried=(again,)))
    assert found.kind == "invisible"
    assert found.text.startswith(
        "the message was popped and not acknowledged 1 time; retry 1: %RETRY%billing_orders broker-a/0"
    )


def test_a_message_that_is_stored_twice() -> None:
    assert "stored-twice" in kinds(group(), message(stored=(copy(3), copy(4))))


def replica(number: int, log_end: int, **fields: object) -> Replica:
    known = {
        "broker_name": QUEUE.broker_name, "address": f"127.0.0.1:{number}", "is_master": number == 1,
        "role": "master" if number == 1 else "slave", "epoch": 4, "log_end": log_end, "confirmed": 0,
    }  # fmt: skip
    return Replica(**{**known, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replicas", "words", "confirmed"),
    [
        ((replica(1, 99, confirmed=50), replica(2, 60)), "is stored at master 127.0.0.1:1, slave 127.0.0.1:2; epoch 4, confirmed", True),
        ((replica(1, 99, confirmed=2), replica(2, 2)), "127.0.0.1:2 lacks the last 2 bytes up to it; epoch 4, not confirmed", False),
        ((replica(2, 99), replica(3, 99, role="acting master")), "acting master 127.0.0.1:3; the group has no master now", False),
    ],
)  # fmt: skip
def test_which_replicas_have_it(replicas: tuple[Replica, ...], words: str, confirmed: bool) -> None:
    found = findings(group(), message(stored=(copy(3),), replicas=replicas))
    (about,) = (each for each in found if each.kind == "replicas")
    assert words in about.text
    assert about.facts["confirmed"] is confirmed


def test_one_broker_without_replicas_says_nothing_of_them() -> None:
    assert "replicas" not in kinds(group(), message(stored=(copy(3),), replicas=(replica(1, 99),)))
