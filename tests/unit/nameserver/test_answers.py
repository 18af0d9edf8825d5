"""Bodies of answers against captured ones, byte for byte."""

from __future__ import annotations

import json
import re

import pytest

from aerobee.nameserver.answers import (
    cluster_info_body,
    kv_table_body,
    member_group_body,
    route_body,
    topic_list_body,
)
from aerobee.nameserver.route_calls import filter_by_zone
from aerobee.nameserver.route_table import GroupView, RouteView, TopicQueues
from tests.unit.nameserver.capture import load, pairs


def parse(body: bytes) -> dict:
    """Parse fastjson's bare keys too."""
    return json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))


def group_view(fields: dict) -> GroupView:
    return GroupView(
        fields["cluster"],
        fields["brokerName"],
        {int(i): address for i, address in fields["brokerAddrs"].items()},
        fields["enableActingMaster"],
        fields.get("zoneName"),
    )


def route_view(body: bytes) -> RouteView:
    fields = parse(body)
    return RouteView(
        tuple(group_view(data) for data in fields["brokerDatas"]),
        tuple(
            (
                data["brokerName"],
                TopicQueues(
                    data["readQueueNums"], data["writeQueueNums"], data["perm"], data["topicSysFlag"]
                ),
            )
            for data in fields["queueDatas"]
        ),
    )


@pytest.mark.parametrize("name", ["mqadmin", "broker-acting-master", "broker-register-compressed"])
def test_every_captured_route_is_written_again_to_the_same_bytes(name: str) -> None:
    routes = [r for q, r in pairs(load(name)) if q.code == 105 and r is not None and r.code == 0]
    assert routes
    for reply in routes:
        fields = parse(reply.body)
        written = route_body(
            route_view(reply.body),
            standard=b'{"0":' in reply.body or b'{"1":' in reply.body,
            order_conf=fields.get("orderTopicConf"),
        )
        assert written == reply.body


@pytest.mark.parametrize("name", ["mqadmin", "broker-acting-master", "broker-register"])
def test_every_captured_cluster_info_is_written_again_to_the_same_bytes(name: str) -> None:
    answers = {r.body for q, r in pairs(load(name)) if q.code == 106 and r is not None}
    assert answers
    for body in answers:
        fields = parse(body)
        groups = [group_view(data) for data in fields["brokerAddrTable"].values()]
        assert cluster_info_body(groups, fields["clusterAddrTable"]) == body


def test_every_captured_member_group_is_written_again_to_the_same_bytes() -> None:
    answers = {r.body for q, r in pairs(load("broker-acting-master-904")) if q.code == 901 and r is not None}
    assert answers
    for body in answers:
        fields = parse(body)["brokerMemberGroup"]
        addresses = {int(i): address for i, address in fields["brokerAddrs"].items()}
        assert member_group_body(fields["cluster"], fields["brokerName"], addresses) == body


GROUP = GroupView("C", "broker-ä", {0: "h:1", 2: "h:2"})
ROUTE = RouteView((GROUP,), (("broker-ä", TopicQueues(1, 2, 6)),), {"h:1": ("f:3",)})


def test_the_standard_dialect_is_ascii_with_quoted_ids_and_the_other_is_neither() -> None:
    standard = route_body(ROUTE, standard=True)
    assert b'"brokerAddrs":{"0":"h:1","2":"h:2"}' in standard
    assert standard.isascii()
    assert json.loads(standard)["brokerDatas"][0]["brokerName"] == "broker-ä"
    fastjson = route_body(ROUTE, standard=False)
    assert b'"brokerAddrs":{0:"h:1",2:"h:2"}' in fastjson
    assert "broker-ä".encode() in fastjson
    for body in (standard, fastjson):
        assert b'"filterServerTable":{"h:1":["f:3"]}' in body
        assert b" " not in body
        assert b"orderTopicConf" not in body


def test_an_order_configuration_is_attached_when_there_is_one() -> None:
    body = json.loads(route_body(ROUTE, standard=True, order_conf="broker-a:4"))
    assert body["orderTopicConf"] == "broker-a:4"


def test_characters_beyond_16_bits_are_written_as_a_pair() -> None:
    route = RouteView((GroupView("🐝", "b", {0: "h:1"}),), (), {})
    assert b'"cluster":"\\ud83d\\udc1d"' in route_body(route, standard=True)


def test_lists_and_tables() -> None:
    assert topic_list_body(["a"]) == b'{"topicList":["a"]}'
    assert topic_list_body(["a"], "h:1") == b'{"brokerAddr":"h:1","topicList":["a"]}'
    assert kv_table_body({}) == b'{"table":{}}'


def test_a_zone_keeps_its_own_brokers_and_those_without_a_master() -> None:
    route = RouteView(
        (
            GroupView("C", "here", {0: "h:1"}, zone="East"),
            GroupView("C", "there", {0: "h:2"}, zone="west"),
            GroupView("C", "nowhere", {0: "h:3"}),
            GroupView("C", "orphan", {1: "h:4"}, zone="west"),
        ),
        tuple((name, TopicQueues(1, 1, 6)) for name in ("here", "there", "nowhere", "orphan")),
        {"h:1": ("f:1",), "h:2": ("f:2",)},
    )
    filtered = filter_by_zone(route, "east")
    assert [group.name for group in filtered.groups] == ["here", "orphan"]
    assert [name for name, _ in filtered.queues] == ["here", "orphan"]
    assert filtered.filter_servers == {"h:1": ("f:1",)}
    assert filter_by_zone(filtered, "EAST") is filtered
