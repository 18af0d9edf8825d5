"""TopicList: names of topics, and in some replies a broker with further names. Source: TopicList."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields


@dataclass(frozen=True, slots=True)
class TopicList:
    """`broker_addr` is filled by GET_SYSTEM_TOPIC_LIST_FROM_NS only."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return json_fields.without_none({"brokerAddr": self.broker_addr, "topicList": list(self.topic_list)})

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> TopicList:
        return cls(json_fields.texts(fields, "topicList"), json_fields.optional_text(fields, "brokerAddr"))

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> TopicList:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "TopicList"))
