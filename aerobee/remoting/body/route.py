"""TopicRouteData: which brokers have a topic and with how many queues. Source: TopicRouteData, QueueData, BrokerData.

    {"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"C",
     "enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,
     "readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}

The dialect of old clients has bare integer keys in `brokerAddrs`; no blanks may occur anywhere, for Go splits the text.
`orderTopicConf` is left out unless there is one: a non-null text changes what Java producers do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.queue_mapping import QueueMappingInfo
from aerobee.remoting.protocol import MASTER_ID

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class QueueData:
    """Number of a topic's queues at one broker. `perm` bits: 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> QueueData:
        return cls(
            json_fields.text(fields, "brokerName"),
            json_fields.integer(fields, "readQueueNums"),
            json_fields.integer(fields, "writeQueueNums"),
            json_fields.integer(fields, "perm"),
            json_fields.integer(fields, "topicSysFlag"),
        )


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses of one broker name: broker id (0 is the master) -> "ip:port"."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The keys of `brokerAddrs` are integers: fastjson.dumps() writes them bare."""
        return json_fields.without_none(
            {
                "brokerAddrs": dict(sorted(self.broker_addrs.items())),
                "brokerName": self.broker_name,
                "cluster": self.cluster,
                "enableActingMaster": self.enable_acting_master,
                "zoneName": self.zone_name,
            }
        )

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> BrokerData:
        return cls(
            json_fields.text(fields, "cluster"),
            json_fields.text(fields, "brokerName"),
            broker_addresses(fields),
            json_fields.boolean(fields, "enableActingMaster"),
            json_fields.optional_text(fields, "zoneName"),
        )

    def address_of_master(self) -> str | None:
        return self.broker_addrs.get(MASTER_ID)


def broker_addresses(fields: json_fields.Fields) -> dict[int, str]:
    """Read `brokerAddrs`. Raises MalformedFrame."""
    found = json_fields.text_map(fields, "brokerAddrs")
    return {json_fields.as_integer(broker_id, "a broker id"): address for broker_id, address in found.items()}


@dataclass(frozen=True, slots=True)
class TopicRouteData:
    """The route of one topic."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None
    filter_server_table: dict[str, Any] = field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, Any] | None = None  # static topics; parsed JSON, passed on

    def to_dict(self) -> dict[str, Any]:
        return json_fields.without_none(
            {
                "brokerDatas": [item.to_dict() for item in self.broker_datas],
                "filterServerTable": self.filter_server_table,
                "orderTopicConf": self.order_topic_conf,
                "queueDatas": [item.to_dict() for item in self.queue_datas],
                "topicQueueMappingByBroker": self.topic_queue_mapping_by_broker,
            }
        )

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> TopicRouteData:
        mappings = json_fields.mapping(fields, "topicQueueMappingByBroker")
        return cls(
            tuple(QueueData.from_dict(item) for item in json_fields.objects(fields, "queueDatas")),
            tuple(BrokerData.from_dict(item) for item in json_fields.objects(fields, "brokerDatas")),
            json_fields.optional_text(fields, "orderTopicConf"),
            json_fields.mapping(fields, "filterServerTable"),
            mappings or None,
        )

    def queue_mappings(self) -> tuple[QueueMappingInfo, ...]:
        """Each broker's part of a static topic; () for every other topic. Raises MalformedFrame."""
        return tuple(
            QueueMappingInfo.from_dict(json_fields.as_object(fields, f"the mapping at {name[:80]!r}"))
            for name, fields in (self.topic_queue_mapping_by_broker or {}).items()
        )

    def encode(self, *, standard_json: bool = True) -> bytes:
        """Write for clients of 4.9.4 and later (quoted keys, non-ASCII escaped), or with bare integer keys."""
        if not standard_json:
            return fastjson.dumps(self.to_dict())
        text = orjson.dumps(self.to_dict(), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS).decode()
        return _NOT_ASCII.sub(_escape, text).encode() if not text.isascii() else text.encode()

    @classmethod
    def decode(cls, body: bytes) -> TopicRouteData:
        """Read either dialect. Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "TopicRouteData"))


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return (
        "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
        .upper()
        .replace("\\U", "\\u")
    )
