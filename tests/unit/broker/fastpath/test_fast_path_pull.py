"""Pulls in the fast path: the handler's replies and accounts, and what is not ordinary is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.broker.fastpath.request import REPLY_BYTES_MAX
from aerobee.broker.state.config import BrokerConfig
from aerobee.message import decode_records
from aerobee.remoting.body.heartbeat import ConsumerData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand, SerializeType
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.protocol import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from aerobee.store.files.config import RUN_BYTES_MAX, SCATTERED_COUNT_MAX
from tests.captures import captured
from tests.fakes import FakePeer
from tests.unit.broker.pulling import Pulling, pull_request
from tests.unit.broker.sending import send_frame, use_backend


@pytest.fixture(params=(PYTHON, NATIVE), autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test holds both backends."""
    use_backend(request.param, monkeypatch)


@pytest.fixture
def pulling(tmp_path: Path) -> Iterator[Pulling]:
    pulling = Pulling(tmp_path)
    pulling.groups.put(SubscriptionGroupConfig("group"))
    yield pulling
    pulling.close()


def serve(pulling: Pulling, request: RemotingCommand) -> list[RemotingCommand]:
    """What the fast path answers; nothing when it leaves the pull to the handler."""
    connection = FakePeer()
    frame = encode_frame(request)
    used = pulling.fast_path.burst(connection, frame, 0)  # type: ignore[arg-type]
    assert used == (len(frame) if connection.written else 0)
    return connection.replies()


@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize("code", [11, 361])
@pytest.mark.parametrize("subscription", ["*", "TagA", "TagB || TagC"])
def test_a_pull_that_finds_messages_is_answered_as_the_handler_does(
    pulling: Pulling, kind: SerializeType, code: int, subscription: str
) -> None:
    for tag in ("TagA", "TagB", "", "TagC", "TagA") * 20:
        pulling.send(tag=tag)
    for offset in (0, 1, 97, 99):
        for count in ("0", "1", "32", "5000"):
            request = pull_request(offset, subscription=subscription, maxMsgNums=count)
            request.serialize_type, request.code = kind, code
            expected = pulling.pull(FakePeer(), request)
            assert expected is not None
            served = serve(pulling, request)
            assert served == ([expected] if expected.code == 0 else [])
            if served:
                assert list(decode_records(served[0].body))


@pytest.mark.parametrize("code", [11, 361])
@pytest.mark.parametrize(
    "expression",
    ["TAGS <> 'TagC'", "TAGS = 'TagB' OR TAGS IS NULL", "TAGS CONTAINS 'B'", "(TAGS = 'TagA') = TRUE"],
)
def test_a_pull_through_sql92_is_answered_as_the_handler_does(
    tmp_path: Path, code: int, expression: str
) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", enable_property_filter=True))
    pulling.groups.put(SubscriptionGroupConfig("group"))
    for tag in ("TagA", "TagB", "", "TagC", "TagA") * 20:
        pulling.send(tag=tag)
    is_native = pulling.fast_path.choice.name == NATIVE
    for offset in (0, 1, 97):
        for count in ("1", "32"):
            request = pull_request(offset, subscription=expression, maxMsgNums=count, expressionType="SQL92")
            request.code = code
            expected = pulling.pull(FakePeer(), request)
            assert expected is not None
            served = serve(pulling, request)
            if is_native and "TRUE" in expression:
                assert served == []  # such an expression is evaluated in Python only
            else:
                assert served == ([expected] if expected.code == 0 else [])
    pulling.close()


def test_a_groups_sql92_subscription_is_heeded_whatever_the_pull_calls_it(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", enable_property_filter=True))
    subscription = SubscriptionData("TopicNormal", "TAGS = 'TagB'", expression_type="SQL92")
    data = ConsumerData("group", subscription_data_set=(subscription,))
    member = FakePeer()
    member.is_open = False  # not to be notified of others
    pulling.consumers.register(data, member, "c1", language=3, version=513)  # type: ignore[arg-type]
    pulling.groups.put(SubscriptionGroupConfig("group"))
    for tag in ("TagA", "TagB", "TagC"):
        pulling.send(tag=tag)
    for kind in ("SQL92", "TAG"):
        (served,) = serve(pulling, pull_request(flags=0, expressionType=kind))
        assert [record.tag for record in decode_records(served.body)] == ["TagB"]
    pulling.close()


def test_a_pull_sees_the_messages_before_it_in_the_same_read(pulling: Pulling) -> None:
    connection = FakePeer()
    data = send_frame() + encode_frame(pull_request(0)) + send_frame() + encode_frame(pull_request(0))
    assert pulling.fast_path.burst(connection, data, 0) == len(data)  # type: ignore[arg-type]
    _, first, _, second = connection.replies()
    assert [len(list(decode_records(reply.body))) for reply in (first, second)] == [1, 2]
    assert len(connection.written) == 1, "replies of one read leave in one write"


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("the end", {"queueOffset": "3"}),
        ("beyond the end", {"queueOffset": "900"}),
        ("below the beginning", {"queueOffset": "-1"}),
        ("an empty queue", {"queueId": "2"}),
        ("no such queue", {"queueId": "4"}),
        ("no such topic", {"topic": "TopicNowhere"}),
        ("a new group", {"consumerGroup": "newcomer"}),
        ("SQL92", {"expressionType": "SQL92", "subscription": "a > 1"}),
        ("nothing matches", {"subscription": "TagNobodySent"}),
        ("no heartbeat", {"sysFlag": "0"}),
        ("no number", {"queueOffset": "1_0"}),
        ("a commit without offset", {"sysFlag": "5", "commitOffset": ""}),
    ],
)  # fmt: skip
def test_an_ineligible_pull_is_left_to_the_handler(
    pulling: Pulling, what: str, fields: dict[str, str]
) -> None:
    pulling.send(3)
    assert serve(pulling, pull_request(0)), "the same pull without it is served"
    assert serve(pulling, pull_request(0, **fields)) == [], what


def test_a_oneway_pull_is_left_to_the_handler(pulling: Pulling) -> None:
    pulling.send(3)
    request = pull_request(0)
    request.flag = FLAG_ONEWAY
    assert serve(pulling, request) == []


def test_offsets_and_statistics_are_those_of_the_handler(pulling: Pulling) -> None:
    pulling.send(5)
    (reply,) = serve(
        pulling,
        pull_request(1, flags=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET | PULL_SUSPEND, commitOffset="1"),
    )
    assert pulling.offsets.query("group", "TopicNormal", 1) == 1
    assert pulling.offsets.query_pulled("group", "TopicNormal", 1) == 5
    counters = dict(pulling.stats.counters("GROUP_GET_NUMS"))
    counter = counters["TopicNormal@group"]
    assert (counter.count, counter.size, counter.times) == (4, len(reply.body), 1)


CHANGES: dict[str, Callable[[Pulling], object]] = {
    "group disabled": lambda p: p.groups.disable("group"),
    "group forbidden": lambda p: p.groups.set_readable("group", "TopicNormal", readable=False),
    "group deleted": lambda p: p.groups.delete("group"),
    "topic not readable": lambda p: p.topics.put(TopicConfig("TopicNormal", 4, 4, 2)),
    "topic deleted": lambda p: p.topics.delete("TopicNormal"),
    "fewer queues": lambda p: p.topics.put(TopicConfig("TopicNormal", 1, 1)),
    "broker not readable": lambda p: p.live.replace(broker_permission=2),
    "reset": lambda p: p.offsets.assign_reset("group", "TopicNormal", {1: 0}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_ends_what_was_granted_before(pulling: Pulling, change: str) -> None:
    pulling.send(3)
    assert serve(pulling, pull_request(0))
    CHANGES[change](pulling)
    assert serve(pulling, pull_request(0)) == []


def test_a_pending_reset_is_answered_once_and_then_the_fast_path_serves_again(pulling: Pulling) -> None:
    pulling.send(3)
    pulling.offsets.assign_reset("group", "TopicNormal", {1: 2})
    assert serve(pulling, pull_request(0)) == []
    moved = pulling.pull(FakePeer(), pull_request(0))
    assert moved is not None
    assert (moved.code, moved.remark) == (21, "OFFSET_RESET")
    assert serve(pulling, pull_request(2))


def test_the_groups_subscription_counts_when_the_pull_has_none(pulling: Pulling) -> None:
    member = FakePeer()
    member.is_open = False

    def heartbeat(expression: str, version: int, model: str = "CLUSTERING") -> None:
        subscription = SubscriptionData.parse("TopicNormal", expression, sub_version=version)
        data = ConsumerData("group", message_model=model, subscription_data_set=(subscription,))
        pulling.consumers.register(data, member, "c", language=3, version=513)  # type: ignore[arg-type]

    def bodies(version: int) -> list[str | None]:
        replies = serve(pulling, pull_request(0, flags=0, subVersion=str(version)))
        return [record.tag for reply in replies for record in decode_records(reply.body)]

    for tag in ("TagA", "TagB", "TagA"):
        pulling.send(tag=tag)
    heartbeat("TagA", 5)
    assert bodies(5) == ["TagA", "TagA"]
    assert bodies(6) == [], "the broker knows an older subscription only"
    heartbeat("TagB", 6)
    assert bodies(6) == ["TagB"]
    pulling.groups.put(SubscriptionGroupConfig("group", consume_broadcast_enable=False))
    heartbeat("TagB", 6, model="BROADCASTING")
    assert bodies(6) == []
    heartbeat("TagB", 6)
    assert bodies(6) == ["TagB"]
    pulling.consumers.unregister("group", member)  # type: ignore[arg-type]
    assert bodies(6) == []


def test_a_slow_group_is_sent_to_the_slave_it_has_settled_on(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, memory_bytes=1_000)  # 400 of them count as memory
    pulling.live.replace(slave_read_enable=True)
    pulling.groups.put(SubscriptionGroupConfig("group", which_broker_when_consume_slowly=7))
    pulling.send(50)
    replies = [serve(pulling, pull_request(offset))[0] for offset in (0, 49)]
    assert [reply.ext and reply.ext["suggestWhichBrokerId"] for reply in replies] == ["7", "0"]
    assert [pulling.pull(FakePeer(), pull_request(offset)) for offset in (0, 49)] == replies
    pulling.close()


def test_a_burst_of_many_large_pulls_ends_early(pulling: Pulling) -> None:
    pulling.fast_path.burst(FakePeer(), send_frame(body=bytes(100_000)) * 4, 0)  # type: ignore[arg-type]
    connection = FakePeer()
    data = encode_frame(pull_request(0)) * 20
    used = pulling.fast_path.burst(connection, data, 0)  # type: ignore[arg-type]
    assert 0 < used < len(data)
    (written,) = connection.written
    assert REPLY_BYTES_MAX <= len(written) < 2 * REPLY_BYTES_MAX


@pytest.mark.parametrize("name", ["java-consume-lite", "java-consume-pull", "cpp-consumer"])
def test_captured_pulls_are_served(pulling: Pulling, name: str) -> None:
    served = 0
    for frame in captured(name):
        if frame.direction != "request" or frame.is_reply or frame.request_code not in (11, 361):
            continue
        fields = frame.header["extFields"]
        queue = str(fields["queueId"])
        pulling.topics.put(TopicConfig(fields["topic"], 16, 16))
        pulling.groups.find_or_create(fields["consumerGroup"])
        pulling.fast_path.burst(FakePeer(), send_frame(fields["topic"], queue=queue), 0)  # type: ignore[arg-type]
        expected = pulling.pull(FakePeer(), decode_frame(frame.data))
        if expected is None or expected.code != 0:
            continue
        connection = FakePeer()
        assert pulling.fast_path.burst(connection, frame.data, 0) == len(frame.data)  # type: ignore[arg-type]
        assert connection.replies() == [expected]
        served += 1
    assert served


def test_a_pull_that_only_python_can_test_waits_with_the_handler(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", enable_property_filter=True))
    pulling.groups.put(SubscriptionGroupConfig("group"))
    pulling.send()
    request = pull_request(
        1,
        flags=PULL_SUBSCRIPTION | PULL_SUSPEND,
        subscription="(TAGS = 'TagA') = TRUE",
        expressionType="SQL92",
    )
    used = pulling.fast_path.burst(FakePeer(), encode_frame(request), 0)  # type: ignore[arg-type]
    assert used == 0, "the backends leave the same pulls to the handler"
    pulling.close()


def counts_of(pulling: Pulling, *asks: tuple[int, int]) -> list[int]:
    """How many messages pulls at these offsets of so many get, by the fast path and by the handler, which give the same."""
    pulling.groups.put(SubscriptionGroupConfig("group"))
    counts = []
    for offset, count in asks:
        request = pull_request(offset, maxMsgNums=str(count))
        (reply,) = serve(pulling, request)
        assert reply == pulling.pull(FakePeer(), request)
        records = list(decode_records(reply.body))
        assert [record.queue_offset for record in records] == list(range(offset, offset + len(records)))
        assert reply.ext is not None
        assert reply.ext["nextBeginOffset"] == str(offset + len(records))
        counts.append(len(records))
    return counts


def test_who_asks_for_more_than_32_gets_up_to_1024(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path)
    pulling.send(1_100)
    asked = [(3, count) for count in (1, 32, 33, 1_023, 1_024, 1_025)]
    assert counts_of(pulling, *asked) == [1, 32, 33, 1_023, 1_024, 1_024]
    assert counts_of(pulling, (1_000, 1_024), (1_099, 32)) == [100, 1]
    pulling.close()


@pytest.mark.parametrize("share", [0, 1_000])
def test_a_file_that_says_fewer_is_obeyed(tmp_path: Path, share: int) -> None:
    pulling = Pulling(
        tmp_path,
        memory_bytes=share,  # 0: all is in memory
        max_transfer_count_on_message_in_memory=32,
        max_transfer_count_on_message_in_disk=8,
    )
    pulling.send(100)
    assert counts_of(pulling, (0, 7), (0, 8), (0, 9), (0, 1_024)) == (
        [7, 8, 8, 8] if share else [7, 8, 9, 32]
    )
    pulling.close()


@pytest.mark.parametrize("share", [0, 1_000])
@pytest.mark.parametrize("bodies", [(100,), (100, 37)])
def test_the_bytes_of_a_reply_are_bounded_whatever_is_asked_for(
    tmp_path: Path, share: int, bodies: tuple[int, ...]
) -> None:
    pulling = Pulling(tmp_path, memory_bytes=share)
    for number in range(200):
        frame = send_frame(queue="1", body=bytes(bodies[number % len(bodies)]))
        assert pulling.fast_path.burst(FakePeer(), frame, 0)  # type: ignore[arg-type]
    sizes = [size for _, size, _ in (pulling.store.queues["TopicNormal", 1].entry(n) for n in range(200))]  # type: ignore[misc]
    name = f"max_transfer_bytes_on_message_in_{'disk' if share else 'memory'}"
    for count in (1, 31, 32, 33, 150):
        for more, expected in ((-1, max(1, count - 1)), (0, count), (1, count)):
            pulling.store.reconfigure(replace(pulling.store.config, **{name: sum(sizes[:count]) + more}))
            assert counts_of(pulling, (0, 1_024)) == [expected], (count, more)
    pulling.close()


@pytest.mark.parametrize(("between", "hot_read_bytes"), [(100_000, 0), (40_000, 0), (100_000, 64 << 20)])
def test_what_may_have_left_the_memory_is_taken_from_near_each_other(
    tmp_path: Path, between: int, hot_read_bytes: int
) -> None:
    pulling = Pulling(tmp_path, hot_read_bytes=hot_read_bytes, mapped_file_size_commit_log=16 << 20)
    for _ in range(70):
        pulling.send()
        pulling.fast_path.burst(FakePeer(), send_frame(queue="0", body=bytes(between)), 0)  # type: ignore[arg-type]
    queue = pulling.store.queues["TopicNormal", 1]
    offsets = [queue.entry(number)[0] for number in range(70)]  # type: ignore[index]
    near = sum(offset - offsets[5] <= RUN_BYTES_MAX for offset in offsets[5:])
    expected = 65 if hot_read_bytes else max(SCATTERED_COUNT_MAX, near)
    assert counts_of(pulling, (5, 32), (5, 65), (5, 1_024)) == [32, expected, expected]
    assert (near > SCATTERED_COUNT_MAX) == (between == 40_000)
    pulling.close()
