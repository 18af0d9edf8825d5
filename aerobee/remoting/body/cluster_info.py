"""ClusterInfo, the answer to GET_BROKER_CLUSTER_INFO: brokers by name, broker names by cluster. Source: ClusterInfo."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.route import BrokerData


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Every broker that a nameserver knows."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "brokerAddrTable": {name: item.to_dict() for name, item in self.broker_addr_table.items()},
            "clusterAddrTable": {name: list(brokers) for name, brokers in self.cluster_addr_table.items()},
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ClusterInfo:
        brokers = json_fields.mapping(fields, "brokerAddrTable")
        clusters = json_fields.mapping(fields, "clusterAddrTable")
        return cls(
            {name: BrokerData.from_dict(json_fields.as_object(item, name)) for name, item in brokers.items()},
            {name: json_fields.texts(clusters, name) for name in clusters},
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> ClusterInfo:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "ClusterInfo"))
