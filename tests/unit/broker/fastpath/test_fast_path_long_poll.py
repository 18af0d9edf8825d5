"""Long polls in the fast path: held as the handler holds them, answered once by the message that they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.fastpath import long_poll
from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.broker.fastpath.long_poll import answer_released
from aerobee.broker.fastpath.seam import BurstResult
from aerobee.broker.pull import pending_pulls
from aerobee.broker.state.config import BrokerConfig
from aerobee.errors import StoreError
from aerobee.message import decode_records
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.protocol import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.fakes import FakePeer
from tests.unit.broker.pulling import Pulling, pull_request
from tests.unit.broker.sending import batch_body, send_frame, use_backend

WAITS = PULL_SUSPEND | PULL_SUBSCRIPTION


@pytest.fixture(params=(PYTHON, NATIVE), autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test holds both backends."""
    use_backend(request.param, monkeypatch)


@pytest.fixture
def pulling(tmp_path: Path) -> Iterator[Pulling]:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", enable_property_filter=True))
    pulling.groups.put(SubscriptionGroupConfig("group"))
    pulling.send(3)
    yield pulling
    pulling.close()


def poll(pulling: Pulling, *requests: RemotingCommand, connection: FakePeer | None = None) -> FakePeer:
    """Give pulls to the fast path in one read; all of them are for it."""
    connection = connection or FakePeer()
    data = b"".join(map(encode_frame, requests))
    assert pulling.fast_path.burst(connection, data, 0) == len(data)  # type: ignore[arg-type]
    return connection


@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize("code", [11, 361])
def test_a_released_pull_is_answered_as_the_handler_does(
    pulling: Pulling, kind: SerializeType, code: int
) -> None:
    request = pull_request(3, flags=WAITS, opaque=77)
    request.serialize_type, request.code = kind, code
    connection, other = poll(pulling, request), FakePeer()
    assert pulling.pull(other, request) is None
    assert (pulling.pending_pulls.count, connection.written) == (2, [])
    pulling.send(2)
    pulling.run_soon()
    expected = pulling.pull(FakePeer(), request)
    assert connection.replies() == other.replies() == [expected]
    assert (
        pulling.pending_pulls.count,
        pulling.pending_pulls.frames_bytes,
        pulling.pending_pulls.by_queue,
    ) == (0, 0, {})


def test_a_message_behind_the_pull_in_one_read_answers_it(pulling: Pulling) -> None:
    connection = FakePeer()
    data = encode_frame(pull_request(3, flags=WAITS, opaque=77)) + send_frame(opaque=78)
    assert pulling.fast_path.burst(connection, data, 0) == len(data)  # type: ignore[arg-type]
    pulling.run_soon()
    assert [(reply.opaque, reply.code) for reply in connection.replies()] == [(78, 0), (77, 0)]


@pytest.mark.parametrize(
    "filtered",
    [{"subscription": "TagC"}, {"subscription": "TAGS = 'TagC'", "expressionType": "SQL92"}],
    ids=["tag", "SQL92"],
)
def test_only_a_message_that_matches_releases_it(pulling: Pulling, filtered: dict[str, str]) -> None:
    first = poll(pulling, pull_request(3, flags=WAITS, **filtered))
    second = FakePeer()
    data = encode_frame(pull_request(3, flags=WAITS, **filtered)) + send_frame(
        properties="UNIQ_KEY\x01U\x02TAGS\x01TagA\x02", flag=2
    )
    pulling.fast_path.burst(second, data, 0)  # type: ignore[arg-type]
    pulling.run_soon()
    assert first.written == second.written == []
    assert pulling.pending_pulls.count == 2
    pulling.send(tag="TagC")
    pulling.run_soon()
    for connection in (first, second):
        (reply,) = connection.replies()
        assert [record.tag for record in decode_records(reply.body)] == ["TagC"]


def test_each_message_of_a_batch_is_looked_at(pulling: Pulling) -> None:
    filtered = {"subscription": "TAGS = 'TagC'", "expressionType": "SQL92"}
    connection = poll(pulling, pull_request(3, flags=WAITS, **filtered))
    texts = [f"UNIQ_KEY\x01U{tag}\x02TAGS\x01{tag}\x02" for tag in ("TagC", "TagA")]
    frame = send_frame(body=batch_body(*((b"x", text) for text in texts)), code=320)
    assert pulling.fast_path.burst(FakePeer(), frame, 0) == len(frame)  # type: ignore[arg-type]
    pulling.run_soon()
    (reply,) = connection.replies()
    assert [record.tag for record in decode_records(reply.body)] == ["TagC"]


def test_its_offset_is_committed_when_it_comes_and_never_again(pulling: Pulling) -> None:
    poll(pulling, pull_request(3, flags=WAITS | PULL_COMMIT_OFFSET, commitOffset="2"))
    assert pulling.offsets.query("group", "TopicNormal", 1) == 2
    assert pulling.offsets.query_pulled("group", "TopicNormal", 1) is None
    pulling.offsets.commit("group", "TopicNormal", 1, 3)
    pulling.send()
    pulling.run_soon()
    assert pulling.offsets.query("group", "TopicNormal", 1) == 3
    assert pulling.offsets.query_pulled("group", "TopicNormal", 1) == 4
    assert [(key, count.count, count.times) for key, count in pulling.stats.counters("GROUP_GET_NUMS")] == [
        ("TopicNormal@group", 1, 1)
    ]


def test_a_hold_that_ends_is_answered_by_the_handler(pulling: Pulling) -> None:
    connection = poll(pulling, pull_request(3, flags=WAITS, suspendTimeoutMillis="4000"))
    pulling.clock.advance(4.0)
    pulling.run_soon()
    (reply,) = connection.replies()
    assert (reply.code, reply.remark) == (19, "OFFSET_OVERFLOW_ONE")


def test_pulls_of_one_connection_leave_in_one_write_in_their_order(pulling: Pulling) -> None:
    connection = poll(pulling, *(pull_request(3, flags=WAITS, opaque=opaque) for opaque in range(300)))
    pulling.send()
    pulling.soon.pop(0)()
    assert len(connection.written) == 1
    pulling.run_soon()
    assert len(connection.written) == 2
    assert [reply.opaque for reply in connection.replies()] == list(range(300))


def test_what_the_fast_path_does_not_answer_is_for_the_handler(
    pulling: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = poll(pulling, *(pull_request(3, flags=WAITS, opaque=opaque) for opaque in range(3)))
    pulling.groups.put(SubscriptionGroupConfig("group", consume_enable=False))
    pulling.groups.put(SubscriptionGroupConfig("other"))
    large = poll(pulling, pull_request(3, flags=WAITS, consumerGroup="other"), connection=FakePeer())
    monkeypatch.setattr(long_poll, "FRAME_BYTES_MAX", 10)
    pulling.send()
    pulling.run_soon()
    assert [(reply.opaque, reply.code) for reply in connection.replies()] == [(0, 16), (1, 16), (2, 16)]
    assert [reply.code for reply in large.replies()] == [0]


@pytest.mark.parametrize("limit", ["HELD_MAX", "FRAMES_BYTES_MAX"])
def test_without_room_it_is_answered_at_once(
    pulling: Pulling, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(pending_pulls, limit, 1)
    held = poll(pulling, pull_request(3, flags=WAITS))
    refused = poll(pulling, pull_request(3, flags=WAITS))
    assert held.written == []
    assert [reply.code for reply in refused.replies()] == [19]


def test_without_long_polling_the_handler_says_how_long(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", long_polling_enable=False))
    pulling.groups.put(SubscriptionGroupConfig("group"))
    pulling.send()
    frame = encode_frame(pull_request(1, flags=WAITS))
    assert pulling.fast_path.burst(FakePeer(), frame, 0) == 0  # type: ignore[arg-type]
    pulling.close()


def test_when_the_fast_path_fails_the_handler_answers_what_waited(
    pulling: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = poll(pulling, *(pull_request(3, flags=WAITS, opaque=opaque) for opaque in (7, 8)))

    def fail(*_: object) -> BurstResult:
        raise OSError("the mapping is gone")

    pulling.send(1)
    monkeypatch.setattr(
        "aerobee.broker.fastpath.fast_path.answer_released", lambda _, pulls: answer_released(fail, pulls)
    )
    pulling.run_soon()
    assert [(reply.opaque, reply.code) for reply in connection.replies()] == [(7, 0), (8, 0)]


def test_a_pull_that_fails_among_others_is_the_only_one_counted_elsewhere(
    pulling: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ("group", "other", "third")
    for name in groups:
        pulling.groups.put(SubscriptionGroupConfig(name))
    connection = FakePeer()
    for opaque, name in enumerate(groups):
        poll(pulling, pull_request(3, flags=WAITS, consumerGroup=name, opaque=opaque), connection=connection)
    pulling.groups.put(SubscriptionGroupConfig("news"))  # the permission to pull is checked again
    is_readable = pulling.groups.is_readable
    faults: list[str] = []

    def fails_once(group: str, topic: str) -> bool:
        if group == "other" and not faults:
            faults.append(group)
            raise OSError("the table is gone")
        return is_readable(group, topic)

    monkeypatch.setattr(pulling.groups, "is_readable", fails_once)
    pulling.send(1)
    pulling.run_soon()
    assert faults == ["other"]
    assert [(reply.opaque, reply.code) for reply in connection.replies()] == [(0, 0), (1, 0), (2, 0)]
    counters = dict(pulling.stats.counters("GROUP_GET_NUMS"))
    assert {key: (count.count, count.times) for key, count in counters.items()} == {
        f"TopicNormal@{name}": (1, 1) for name in groups
    }


def test_a_pull_that_cannot_be_answered_costs_its_own_connection_only(
    pulling: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = (poll(pulling, pull_request(3, flags=WAITS, opaque=opaque)) for opaque in (7, 8))
    failures: list[BaseException] = []
    monkeypatch.setattr(bad, "failed", failures.append, raising=False)
    resume = pulling.pulls.resume

    def resume_good(pull: pending_pulls.PendingPull) -> None:
        if pull.peer is bad:
            raise OSError("the mapping is gone")
        resume(pull)

    monkeypatch.setattr(pulling, "resume", resume_good)
    pulling.pending_pulls.answer_first(list)
    pulling.send(1)
    pulling.run_soon()
    assert [type(failure) for failure in failures] == [OSError]
    assert [reply.code for reply in good.replies()] == [0]


def test_a_store_that_cannot_be_read_is_an_answer_to_what_waited(
    pulling: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = poll(pulling, pull_request(3, flags=WAITS, opaque=7))

    def fail(*_: object, **__: object) -> None:
        raise StoreError("the entry has no record")

    pulling.pending_pulls.answer_first(list)
    pulling.send(1)
    monkeypatch.setattr(pulling.store, "get_messages", fail)
    pulling.run_soon()
    assert [(reply.code, reply.remark) for reply in connection.replies()] == [(1, "the entry has no record")]


def test_a_pull_that_arrives_with_a_message_wakes_no_other(pulling: Pulling) -> None:
    # A pending pull by SQL92 was notified of the message when it was stored; that another one is held afterwards is no news to it.
    sql = {"subscription": "color = 'red'", "expressionType": "SQL92"}
    held = poll(pulling, pull_request(3, flags=WAITS, **sql))
    pulling.send(tag="TagA")
    other = FakePeer()
    data = encode_frame(pull_request(4, flags=WAITS, subscription="TagC")) + send_frame()
    assert pulling.fast_path.burst(other, data, 0) == len(data)  # type: ignore[arg-type]
    pulling.run_soon()
    assert (held.replies(), pulling.pending_pulls.count) == ([], 2)


def test_a_sql_pull_is_shown_the_messages_of_its_own_burst(pulling: Pulling) -> None:
    sql = {"subscription": "color = 'red'", "expressionType": "SQL92"}
    peer = FakePeer()
    texts = ("UNIQ_KEY\x01U\x02color\x01blue\x02", "UNIQ_KEY\x01U\x02color\x01red\x02")
    data = b"".join(
        (encode_frame(pull_request(3, flags=WAITS, **sql)), *(send_frame(properties=text) for text in texts))
    )
    assert pulling.fast_path.burst(peer, data, 0) == len(data)  # type: ignore[arg-type]
    pulling.run_soon()
    found = [reply for reply in peer.replies() if reply.ext and "nextBeginOffset" in reply.ext]
    assert [record.properties["color"] for reply in found for record in decode_records(reply.body)] == ["red"]
