"""Pulls: codes and offsets of every case, filters, holding and waking."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.state.config import BrokerConfig
from aerobee.message import decode_records
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.fakes import FakePeer
from tests.unit.broker.pulling import Pulling, pull_request


@pytest.fixture
def pulling(tmp_path: Path) -> Iterator[Pulling]:
    pulling = Pulling(tmp_path)
    yield pulling
    pulling.close()


def offsets_of(reply: RemotingCommand) -> tuple[int, int, int]:
    assert reply.ext is not None
    assert reply.ext["suggestWhichBrokerId"] == "0"
    return int(reply.ext["nextBeginOffset"]), int(reply.ext["minOffset"]), int(reply.ext["maxOffset"])


@pytest.mark.parametrize(
    ("offset", "code", "remark", "offsets"),
    [
        (0, 0, "FOUND", (3, 0, 3)),
        (2, 0, "FOUND", (3, 0, 3)),
        (3, 19, "OFFSET_OVERFLOW_ONE", (3, 0, 3)),
        (1_000, 21, "OFFSET_OVERFLOW_BADLY", (3, 0, 3)),
    ],
)
def test_where_a_pull_asks_decides_its_code(
    pulling: Pulling, offset: int, code: int, remark: str, offsets: tuple[int, int, int]
) -> None:
    pulling.send(3)
    reply = pulling.pull(FakePeer(), pull_request(offset))
    assert reply is not None
    assert (reply.code, reply.remark) == (code, remark)
    assert offsets_of(reply) == offsets
    assert len(list(decode_records(reply.body))) == (3 - offset if code == 0 else 0)


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (5, 21)])
def test_a_queue_never_written_waits_at_0_and_corrects_other_offsets(
    pulling: Pulling, offset: int, code: int
) -> None:
    reply = pulling.pull(FakePeer(), pull_request(offset))
    assert reply is not None
    assert reply.code == code
    assert offsets_of(reply) == (0, 0, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "TopicNowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR),
        ({"sysFlag": "0"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
def test_refusals_have_rocketmqs_codes(pulling: Pulling, fields: dict[str, str], code: int) -> None:
    reply = pulling.pull(FakePeer(), pull_request(**fields))
    assert reply is not None
    assert reply.code == code
    assert reply.remark


def test_permissions_of_broker_group_and_topic_are_told_apart(pulling: Pulling) -> None:
    pulling.groups.put(SubscriptionGroupConfig("closed", consume_enable=False))
    pulling.topics.put(TopicConfig("TopicWriteOnly", 4, 4, 2))
    replies = [
        pulling.pull(FakePeer(), pull_request(consumerGroup="closed")),
        pulling.pull(FakePeer(), pull_request(topic="TopicWriteOnly")),
    ]
    pulling.live.replace(broker_permission=2)
    replies.append(pulling.pull(FakePeer(), pull_request()))
    assert [reply.ext["forbiddenType"] for reply in replies if reply and reply.ext] == ["2", "3", "1"]
    assert all(reply and reply.code == ResponseCode.NO_PERMISSION for reply in replies)


def test_an_unknown_group_is_refused_when_groups_are_not_created(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", auto_create_subscription_group=False))
    reply = pulling.pull(FakePeer(), pull_request())
    assert reply is not None
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    pulling.close()


def test_a_tag_filter_skips_the_others(pulling: Pulling) -> None:
    for tag in ("TagA", "TagB", "TagA"):
        pulling.send(tag=tag)
    reply = pulling.pull(FakePeer(), pull_request(subscription="TagB || TagX"))
    assert reply is not None
    assert reply.code == 0
    assert [record.tag for record in decode_records(reply.body)] == ["TagB"]
    assert offsets_of(reply)[0] == 3
    nothing = pulling.pull(FakePeer(), pull_request(subscription="NoSuchTag"))
    assert nothing is not None
    assert (nothing.code, nothing.remark, nothing.body) == (20, "NO_MATCHED_MESSAGE", b"")


def test_sql_filters_when_the_broker_allows_them(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", enable_property_filter=True))
    pulling.send(tag="TagA")
    pulling.send(tag="TagB")
    reply = pulling.pull(FakePeer(), pull_request(expressionType="SQL92", subscription="TAGS = 'TagB'"))
    assert reply is not None
    assert [record.tag for record in decode_records(reply.body)] == ["TagB"]
    refused = pulling.pull(FakePeer(), pull_request(expressionType="SQL92", subscription="TAGS = = "))
    assert refused is not None
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "column 8" in str(refused.remark)
    pulling.close()


def test_a_held_sql_pull_is_answered_by_the_first_message_that_matches(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", enable_property_filter=True))
    connection = FakePeer()
    request = pull_request(
        flags=PULL_SUSPEND | PULL_SUBSCRIPTION,
        opaque=78,
        expressionType="SQL92",
        subscription="TAGS = 'TagB'",
    )
    assert pulling.pull(connection, request) is None
    pulling.send(tag="TagA")
    pulling.run_soon()
    assert pulling.pending_pulls.count == 1
    assert connection.replies() == []
    pulling.send(tag="TagB")
    pulling.run_soon()
    (reply,) = connection.replies()
    assert [record.tag for record in decode_records(reply.body)] == ["TagB"]
    pulling.close()


def test_the_offset_in_the_header_is_committed_once(pulling: Pulling) -> None:
    pulling.send(3)
    pulling.pull(
        FakePeer(),
        pull_request(3, flags=PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION | PULL_SUSPEND, commitOffset="2"),
    )
    assert pulling.offsets.query("group", "TopicNormal", 1) == 2
    pulling.offsets.commit("group", "TopicNormal", 1, 3)
    pulling.send()
    pulling.run_soon()
    assert pulling.offsets.query("group", "TopicNormal", 1) == 3


def test_a_held_pull_is_answered_by_the_message_it_waits_for(pulling: Pulling) -> None:
    connection = FakePeer()
    assert pulling.pull(connection, pull_request(flags=PULL_SUSPEND | PULL_SUBSCRIPTION, opaque=77)) is None
    assert pulling.pending_pulls.count == 1
    pulling.send(5)
    pulling.run_soon()
    (reply,) = connection.replies()
    assert (reply.code, reply.opaque) == (0, 77)
    assert len(list(decode_records(reply.body))) == 5, "a burst is answered as one"
    assert pulling.pending_pulls.count == 0
    assert not pulling.pending_pulls.by_queue


def test_a_message_that_does_not_match_leaves_the_pull_held(pulling: Pulling) -> None:
    connection = FakePeer()
    pulling.pull(connection, pull_request(flags=PULL_SUSPEND | PULL_SUBSCRIPTION, subscription="TagC"))
    pulling.send(tag="TagA")
    pulling.run_soon()
    assert connection.replies() == []
    pulling.send(tag="TagC")
    pulling.run_soon()
    (reply,) = connection.replies()
    assert [record.tag for record in decode_records(reply.body)] == ["TagC"]


def test_a_held_pull_ends_at_its_own_time(pulling: Pulling) -> None:
    connection = FakePeer()
    pulling.pull(
        connection,
        pull_request(flags=PULL_SUSPEND | PULL_SUBSCRIPTION, suspendTimeoutMillis="15000", opaque=1),
    )
    pulling.pull(
        connection,
        pull_request(flags=PULL_SUSPEND | PULL_SUBSCRIPTION, suspendTimeoutMillis="4000", opaque=2),
    )
    pulling.clock.advance(3.9)
    pulling.run_soon()
    assert connection.replies() == []
    pulling.clock.advance(0.1)
    pulling.run_soon()
    assert [(reply.code, reply.opaque) for reply in connection.replies()] == [(19, 2)]
    pulling.clock.advance(11.1)
    pulling.run_soon()
    assert [reply.opaque for reply in connection.replies()] == [2, 1]


def test_without_long_polling_the_hold_is_the_brokers(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", long_polling_enable=False))
    connection = FakePeer()
    pulling.pull(connection, pull_request(flags=PULL_SUSPEND | PULL_SUBSCRIPTION))
    pulling.clock.advance(1.0)
    pulling.run_soon()
    assert [reply.code for reply in connection.replies()] == [19]
    pulling.close()


def test_a_closed_connection_takes_its_held_pulls_along(pulling: Pulling) -> None:
    connection, other = FakePeer(), FakePeer()
    for each in (connection, other):
        pulling.pull(each, pull_request(flags=PULL_SUSPEND | PULL_SUBSCRIPTION))
    connection.close()
    assert pulling.pending_pulls.count == 1
    pulling.send()
    pulling.run_soon()
    assert connection.written == []
    assert len(other.replies()) == 1


def test_a_reset_reaches_a_held_pull_at_once(pulling: Pulling) -> None:
    pulling.send(3)
    connection = FakePeer()
    assert pulling.pull(connection, pull_request(3, flags=PULL_SUSPEND | PULL_SUBSCRIPTION)) is None
    pulling.offsets.assign_reset("group", "TopicNormal", {1: 1})
    pulling.run_soon()
    (reply,) = connection.replies()
    assert (reply.code, reply.remark) == (21, "OFFSET_RESET")
    assert reply.ext
    assert reply.ext["nextBeginOffset"] == "1"
    after = pulling.pull(connection, pull_request(1))
    assert after is not None
    assert after.code == 0


def test_everything_held_is_answered_when_the_broker_stops(pulling: Pulling) -> None:
    connection = FakePeer()
    pulling.pull(connection, pull_request(flags=PULL_SUSPEND | PULL_SUBSCRIPTION))
    pulling.pending_pulls.end()
    pulling.pending_pulls.release_all()
    assert [reply.code for reply in connection.replies()] == [19]
    assert pulling.pull(connection, pull_request(flags=PULL_SUSPEND | PULL_SUBSCRIPTION)) is not None


def test_a_slave_answers_pulls_only_when_it_may(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path / "no", BrokerConfig(broker_name="b", broker_id=1))
    reply = pulling.pull(FakePeer(), pull_request())
    assert reply is not None
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert reply.remark
    assert reply.remark.startswith("[REJECTREQUEST]")
    pulling.close()
    reader = Pulling(tmp_path / "yes", BrokerConfig(broker_name="b", broker_id=1, slave_read_enable=True))
    reply = reader.pull(FakePeer(), pull_request(7))
    assert reply is not None
    assert (reply.code, reply.ext and reply.ext["nextBeginOffset"]) == (20, "7")
    reader.close()


def test_statistics_count_what_was_pulled(pulling: Pulling) -> None:
    pulling.send(3)
    pulling.pull(FakePeer(), pull_request())
    counters = dict(pulling.stats.counters("GROUP_GET_NUMS"))
    assert counters["TopicNormal@group"].count == 3


def test_a_held_sql_pull_hears_of_each_message_once_and_of_several_at_once(tmp_path: Path) -> None:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="b", enable_property_filter=True))
    connection = FakePeer()
    request = pull_request(
        flags=PULL_SUSPEND | PULL_SUBSCRIPTION, expressionType="SQL92", subscription="color = 'red'"
    )
    assert pulling.pull(connection, request) is None
    for _ in range(3):
        pulling.send(tag="TagA")
        pulling.run_soon()
    assert (pulling.pending_pulls.count, connection.replies()) == (1, []), (
        "each was tested, and none is for it"
    )
    # A slave's notice may stand for more than one message: the pull looks at all of them itself.
    pulling.pending_pulls.on_appended("TopicNormal", 1, 5, 0)
    pulling.run_soon()
    (reply,) = connection.replies()
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")
    pulling.close()
