"""Bodies of a NameServer's answers. Core. Source: TopicRouteData, ClusterInfo, TopicList, KVTable (RocketMQ).

A route is written in one of two dialects. Standard JSON, ASCII only with quoted broker ids, for clients from
version 401 on or those that set `acceptStandardJsonOnly`; else fastjson's, which writes integer keys without
quotes. Neither contains a blank outside of strings: the Go client splits the raw text at commas. Fields are
in alphabetical order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from aerobee.nameserver.route_table import GroupView, RouteView, TopicQueues
from aerobee.remoting import fastjson

STANDARD_JSON_VERSION_MIN = 401


def route_body(route: RouteView, *, standard: bool, order_conf: str | None = None) -> bytes:
    """TopicRouteData. `orderTopicConf` is omitted for topics without one: clients act on an empty text, too."""
    head = [
        f'"brokerDatas":[{",".join(_group_text(group, quoted=standard) for group in route.groups)}]',
        f'"filterServerTable":{_dumps({key: list(value) for key, value in route.filter_servers.items()})}',
    ]
    if order_conf is not None:
        head.append(f'"orderTopicConf":{_dumps(order_conf)}')
    head.append(f'"queueDatas":[{",".join(_queues_text(name, queues) for name, queues in route.queues)}]')
    if route.mappings:
        head.append(f'"topicQueueMappingByBroker":{_mappings_text(route, standard=standard)}')
    text = "{" + ",".join(head) + "}"
    return _ascii_only(text).encode() if standard else text.encode()


def cluster_info_body(groups: Iterable[GroupView], clusters: Mapping[str, Iterable[str]]) -> bytes:
    """ClusterInfo, in fastjson's dialect for every client, as RocketMQ writes it."""
    table = ",".join(f"{_dumps(group.name)}:{_group_text(group, quoted=False)}" for group in groups)
    names = _dumps({cluster: list(brokers) for cluster, brokers in clusters.items()})
    return f'{{"brokerAddrTable":{{{table}}},"clusterAddrTable":{names}}}'.encode()


def member_group_body(cluster: str, name: str, addresses: Mapping[int, str]) -> bytes:
    """GetBrokerMemberGroupResponseBody, in fastjson's dialect."""
    table = _addresses_text(addresses, quoted=False)
    return (
        f'{{"brokerMemberGroup":{{"brokerAddrs":{table},"brokerName":{_dumps(name)},"cluster":{_dumps(cluster)}}}}}'
    ).encode()


def topic_list_body(topics: Sequence[str], broker_address: str | None = None) -> bytes:
    """TopicList; `brokerAddr` is omitted when it is empty."""
    fields: dict[str, Any] = {} if broker_address is None else {"brokerAddr": broker_address}
    return orjson.dumps({**fields, "topicList": list(topics)})


def kv_table_body(table: Mapping[str, str]) -> bytes:
    """KVTable."""
    return orjson.dumps({"table": dict(table)})


def _group_text(group: GroupView, *, quoted: bool) -> str:
    zone = "" if group.zone is None else f',"zoneName":{_dumps(group.zone)}'
    return (
        f'{{"brokerAddrs":{_addresses_text(group.addresses, quoted=quoted)},"brokerName":{_dumps(group.name)},'
        f'"cluster":{_dumps(group.cluster)},"enableActingMaster":{_dumps(group.enable_acting_master)}{zone}}}'
    )


def _addresses_text(addresses: Mapping[int, str], *, quoted: bool) -> str:
    quote = '"' if quoted else ""
    return "{" + ",".join(f"{quote}{i}{quote}:{_dumps(address)}" for i, address in addresses.items()) + "}"


def _queues_text(broker_name: str, queues: TopicQueues) -> str:
    return (
        f'{{"brokerName":{_dumps(broker_name)},"perm":{queues.perm},"readQueueNums":{queues.read_queue_count},'
        f'"topicSysFlag":{queues.topic_sys_flag},"writeQueueNums":{queues.write_queue_count}}}'
    )


def _mappings_text(route: RouteView, *, standard: bool) -> str:
    table = {name: info.to_dict() for name, info in route.mappings.items()}
    if standard:
        return orjson.dumps(table, option=orjson.OPT_NON_STR_KEYS).decode()
    return fastjson.dumps(table).decode()


def _dumps(value: object) -> str:
    return orjson.dumps(value).decode()


def _ascii_only(text: str) -> str:
    """Escape non-ASCII characters, which occur only inside JSON strings."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)
