"""Where exchanges send a message."""

from __future__ import annotations

from aerobee.contrib.celery.exchange_types import Target, default_transient, targets

SHARED = Target(topic="news%topic", tag="k")


def test_durable_bindings_have_a_copy_each() -> None:
    for kind in ("direct", "topic"):
        assert targets("", kind, "news", "k", {"b", "a"}, ()) == [Target(queue="a"), Target(queue="b")]


def test_fanout_always_reaches_transient_queues_of_other_processes() -> None:
    assert targets("", "fanout", "news", "k", {"a"}, ()) == [Target(queue="a"), SHARED]
    assert targets("", "fanout", "news", "k", (), ()) == [SHARED]


def test_unbound_keys_go_to_transient_queues() -> None:
    assert targets("", "topic", "news", "k.x", (), ()) == [SHARED]
    assert targets("v%-", "direct", "news", "k.x", (), ()) == [
        Target(topic="v%-kombu%transient", tag="news%-k%2Ex")
    ]


def test_transient_bindings_share_one_copy() -> None:
    assert targets("", "topic", "news", "k", {"a", "t1", "t2"}, {"t1", "t2"}) == [Target(queue="a"), SHARED]


def test_default_exchange_names_the_queue() -> None:
    assert default_transient("", "reply.1") == Target(topic="kombu%transient", tag="reply%2E1")
