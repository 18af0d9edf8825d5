"""Names of topics, groups and tags."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aerobee.contrib.celery import names
from aerobee.errors import UsageError
from aerobee.message import check_group_name, check_topic_name

NAMES = st.text(min_size=1, max_size=150).filter(lambda text: text.isprintable())


def test_names_read_as_written() -> None:
    assert names.queue_topic("", "celery") == "celery"
    assert names.queue_topic(names.prefix_of("/shop"), "a.b") == "shop%-a%2Eb"
    assert names.exchange_topic("", "celeryev") == "celeryev%topic"
    assert names.prefix_of("/") == ""


@given(NAMES, NAMES)
def test_different_queues_have_different_legal_topics(first: str, second: str) -> None:
    topics = []
    for name in (first, second):
        try:
            topic = names.queue_topic("", name)
        except UsageError:
            return  # a name of the system
        check_topic_name(topic)
        check_group_name(topic)
        topics.append(topic)
    assert (topics[0] == topics[1]) == (first == second)
    assert names.exchange_topic("", first) not in topics
    assert names.transient_topic("") not in topics


@given(NAMES, NAMES, NAMES)
def test_virtual_hosts_share_no_topic(host: str, first: str, second: str) -> None:
    prefix = names.prefix_of(host)
    assume(prefix and len(prefix + names.escape(first)) <= names.NAME_CHARS_MAX)
    try:
        assert names.queue_topic(prefix, first) != names.queue_topic("", second)
    except UsageError:
        pass  # a name of the system


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "BenchmarkTest"])
def test_names_of_the_system_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="reserved: rename the queue"):
        names.queue_topic("", name)
    assert names.queue_topic("v%-", name) == f"v%-{name}"


def test_a_queue_needs_a_name() -> None:
    with pytest.raises(UsageError, match="needs a name"):
        names.queue_topic("", "")


@pytest.mark.parametrize(
    ("pattern", "tag"), [("#", "*"), ("*.error", "*"), ("worker.#", "worker"), ("task.*", "task"), ("", "-")]
)
def test_tag_of_a_pattern_is_that_of_its_messages(pattern: str, tag: str) -> None:
    assert names.pattern_tag(pattern) == tag


def test_tag_of_a_key_is_its_first_word() -> None:
    assert names.key_tag("worker.heartbeat") == "worker"
    assert names.key_tag("") == "-"
