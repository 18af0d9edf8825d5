"""The shared bodies against those of the captures, byte for byte where a Java peer wrote them."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting.body.broker_member_group import BrokerMemberGroup
from aerobee.remoting.body.cluster_info import ClusterInfo
from aerobee.remoting.body.consume_stats import ConsumeStats
from aerobee.remoting.body.consumer_connection import ConsumerConnection
from aerobee.remoting.body.consumer_running_info import ConsumerRunningInfo
from aerobee.remoting.body.consumer_status import ConsumerStatusBody
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.group_list import GroupList
from aerobee.remoting.body.heartbeat import HeartbeatData
from aerobee.remoting.body.kv_table import KVTable
from aerobee.remoting.body.lock_batch import LockBatchRequestBody, LockBatchResponseBody
from aerobee.remoting.body.producer_connection import ProducerConnection
from aerobee.remoting.body.reset_offset import ResetOffsetBody
from aerobee.remoting.body.route import BrokerData, QueueData, TopicRouteData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from aerobee.remoting.body.topic_config import TopicConfig, TopicConfigSerializeWrapper
from aerobee.remoting.body.topic_list import TopicList
from aerobee.remoting.body.topic_stats import TopicStatsTable
from aerobee.remoting.frame import decode_frame
from tests.captures import capture_names, captured
from tests.rounds import rounds


class Body(Protocol):
    @classmethod
    def decode(cls, body: bytes) -> Any: ...


REPLY_BODIES: dict[int, type[Body]] = {
    21: TopicConfigSerializeWrapper,
    28: KVTable,
    41: LockBatchResponseBody,
    103: KVTable,
    105: TopicRouteData,
    106: ClusterInfo,
    201: SubscriptionGroupWrapper,
    202: TopicStatsTable,
    203: ConsumerConnection,
    204: ProducerConnection,
    206: TopicList,
    208: ConsumeStats,
    219: KVTable,
    222: ResetOffsetBody,
    224: TopicList,
    300: GroupList,
    304: TopicList,
    305: TopicList,
    307: ConsumerRunningInfo,
    322: DataVersion,
    351: TopicConfig,
    352: SubscriptionGroupConfig,
    901: BrokerMemberGroup,
}
REQUEST_BODIES: dict[int, type[Body]] = {
    34: HeartbeatData,
    41: LockBatchRequestBody,
    42: LockBatchRequestBody,
    200: SubscriptionGroupConfig,
    220: ResetOffsetBody,
    322: DataVersion,
}
EVERY_BODY = sorted(
    {*REPLY_BODIES.values(), *REQUEST_BODIES.values(), ConsumerStatusBody, SubscriptionData}, key=str
)


def test_bodies_of_the_captures_encode_again_byte_for_byte() -> None:
    seen: Counter[int] = Counter()
    for name in capture_names():
        for frame in captured(name):
            command = decode_frame(frame.data)
            bodies = REPLY_BODIES if frame.is_reply else REQUEST_BODIES
            kind = bodies.get(frame.request_code or 0)
            if kind is None or not command.body or (frame.is_reply and command.code != 0):
                continue
            body = kind.decode(command.body)
            again = body.encode()
            if frame.header["language"] == "CPP":
                assert kind.decode(again) == body
            elif kind is TopicRouteData:
                assert command.body in (again, body.encode(standard_json=False))
            else:
                assert again == command.body, (name, frame.request_code)
            seen[frame.request_code or 0] += 1
    assert set(seen) >= {
        21,
        28,
        34,
        41,
        42,
        105,
        106,
        200,
        201,
        202,
        203,
        204,
        208,
        222,
        300,
        305,
        307,
        322,
        351,
        901,
    }


def test_a_cpp_heartbeat_has_names_numbers_and_hashes() -> None:
    frame = next(
        decode_frame(frame.data)
        for frame in captured("cpp-orderly")
        if frame.request_code == 34 and not frame.is_reply and b"TopicOrder" in frame.data
    )
    (group,) = HeartbeatData.decode(frame.body).consumer_data_set
    assert (group.consume_type, group.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert group.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    orders = next(item for item in group.subscription_data_set if item.topic == "TopicOrder")
    assert orders.sub_version == 1795220826417
    assert orders.tags_set == ("T1", "T2")
    assert orders.code_set == (2653, 2654)  # the client sent zeros
    assert orders.tag_codes == frozenset({2653, 2654})


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", ()),
        ("", ()),
        (None, ()),
        ("  * ", ()),
        ("TagA", ("TagA",)),
        (" TagA ||TagB||  || TagA", ("TagA", "TagB")),
        ("order|pay", ("order|pay",)),
        ("|| ||", ()),
    ],
)
def test_subscription_text_is_parsed_into_tags(expression: str | None, tags: tuple[str, ...]) -> None:
    subscription = SubscriptionData.parse("T", expression)
    assert subscription.tags_set == tags
    assert (subscription.tag_codes is None) == (not tags)


def test_sql_subscriptions_have_no_tags() -> None:
    subscription = SubscriptionData.parse("T", "a > 1 || b", expression_type="SQL92")
    assert (subscription.tags_set, subscription.tag_codes, subscription.sub_string) == (
        (),
        None,
        "a > 1 || b",
    )
    assert SubscriptionData.decode(subscription.encode()) == subscription


ROUTE = TopicRouteData(
    (QueueData("broker-ä😀", 4, 4, 6),),
    (BrokerData("C", "broker-ä😀", {1: "10.0.0.2:10911", 0: "10.0.0.1:10911"}),),
)


def test_a_route_in_standard_json_has_quoted_keys_and_escapes() -> None:
    text = ROUTE.encode()
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}' in text
    assert b'"brokerName":"broker-\\u00E4\\uD83D\\uDE00"' in text
    assert b"orderTopicConf" not in text
    assert b" " not in text
    assert TopicRouteData.decode(text) == ROUTE


def test_a_route_for_old_clients_has_bare_keys() -> None:
    text = ROUTE.encode(standard_json=False)
    assert b'"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}' in text
    assert TopicRouteData.decode(text) == ROUTE


def test_reset_offsets_have_a_form_for_cpp() -> None:
    body = ResetOffsetBody({MessageQueue("t", "b", 0): 123})
    assert body.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:123}}'
    assert (
        body.encode(for_cpp=True)
        == b'{"offsetTable":[{"brokerName":"b","offset":123,"queueId":0,"topic":"t"}]}'
    )
    assert ResetOffsetBody.decode(body.encode(for_cpp=True)) == body


def test_consumer_status_keeps_offsets_by_client() -> None:
    queue = MessageQueue("t", "b", 1)
    body = ConsumerStatusBody({queue: 5}, {"10.0.0.1@1": {queue: 6}})
    assert ConsumerStatusBody.decode(body.encode()) == body


def test_a_data_version_counts_its_changes() -> None:
    assert DataVersion(1, 5, 7).next(9) == DataVersion(1, 9, 8)
    assert DataVersion.decode(b'{"counter":"3","timestamp":null}') == DataVersion(0, 0, 3)


@pytest.mark.parametrize("kind", EVERY_BODY)
@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"1", b'"x"', b"{", b'{"a":'])
def test_a_body_that_is_no_object_is_malformed(kind: type[Body], data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        kind.decode(data)


BODIES = sorted(
    {
        (kind, command.body)
        for name in ("mqadmin", "cpp-orderly", "java-consume-order")
        for frame in captured(name)
        if (kind := (REPLY_BODIES if frame.is_reply else REQUEST_BODIES).get(frame.request_code or 0))
        is not None
        and 0 < len((command := decode_frame(frame.data)).body) < 3000
    },
    key=str,
)
SNIPPETS = [
    b"null",
    b"-1",
    b'"x"',
    b"{}",
    b"[]",
    b"99999999999999999999",
    b"1.5",
    b"true",
    b'{"a":[1]}',
    b"1e999",
]


@settings(max_examples=rounds(500), deadline=None)
@given(st.sampled_from(BODIES), st.integers(0, 60), st.sampled_from(SNIPPETS))
def test_bodies_with_a_value_replaced_only_raise_malformed_frame(
    sample: tuple[type[Body], bytes], which: int, snippet: bytes
) -> None:
    kind, body = sample
    colons = [at for at, byte in enumerate(body) if byte == ord(":")]
    at = colons[which % len(colons)] + 1
    end = min(
        (found for delimiter in b",}" if (found := body.find(bytes([delimiter]), at)) > 0), default=len(body)
    )
    try:
        decoded = kind.decode(body[:at] + snippet + body[end:])
    except MalformedFrame:
        pass
    else:
        assert isinstance(decoded, kind)


@settings(max_examples=rounds(300), deadline=None)
@given(
    st.sampled_from(EVERY_BODY),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    ),
)
def test_fields_of_any_type_only_raise_malformed_frame(kind: type[Any], value: object) -> None:
    names = set(kind.from_dict({"topicName": "a", "groupName": "a"}).to_dict())
    for name in names:
        try:
            made = kind.from_dict({name: value})
        except MalformedFrame:
            pass
        else:
            assert isinstance(made, kind)
