"""TopicConfig and the table of them that brokers register and slaves copy.

Source: TopicConfig, TopicConfigSerializeWrapper, TopicConfigAndMappingSerializeWrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.data_version import DataVersion

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_MAX = 7
PERM_READ = 4
PERM_PRIORITY = 8
SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"
QUEUE_TYPE, BATCH = "queue.type", "BatchCQ"
QUEUE_COUNT_DEFAULT = 16
SYS_FLAG_UNIT = 1
SYS_FLAG_UNIT_SUBSCRIPTION = 2


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic at one broker. `attributes` are stored without sign, `{"message.type": "FIFO"}`."""

    topic_name: str
    read_queue_nums: int = QUEUE_COUNT_DEFAULT
    write_queue_nums: int = QUEUE_COUNT_DEFAULT
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.topic_name, self.perm, self.read_queue_nums, self.write_queue_nums))

    @property
    def is_readable(self) -> bool:
        return self.perm & PERM_READ != 0

    @property
    def is_writable(self) -> bool:
        return self.perm & PERM_WRITE != 0

    @property
    def is_batch(self) -> bool:
        """Whether its queues are batch queues, which keep one entry for a record of many messages."""
        return self.attributes.get(QUEUE_TYPE) == BATCH

    def to_dict(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> TopicConfig:
        return cls(
            json_fields.text(fields, "topicName"),
            json_fields.integer(fields, "readQueueNums", QUEUE_COUNT_DEFAULT),
            json_fields.integer(fields, "writeQueueNums", QUEUE_COUNT_DEFAULT),
            json_fields.integer(fields, "perm", PERM_READ | PERM_WRITE),
            json_fields.enum_name(fields, "topicFilterType", (SINGLE_TAG, MULTI_TAG), SINGLE_TAG),
            json_fields.integer(fields, "topicSysFlag"),
            json_fields.boolean(fields, "order"),
            json_fields.text_map(fields, "attributes"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> TopicConfig:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_object(body, "TopicConfig"))


@dataclass(frozen=True, slots=True)
class TopicConfigSerializeWrapper:
    """Topic configs by name with the version of the table.

    The mapping fields belong to static topics; they are kept as parsed JSON, and written when not None: 5.x brokers
    always write them, and a slave of RocketMQ refuses an explicit null.
    """

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_info_map: dict[str, Any] | None = None
    topic_queue_mapping_detail_map: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        mapping_version = self.mapping_data_version
        return json_fields.without_none(
            {
                "dataVersion": self.data_version.to_dict(),
                "mappingDataVersion": None if mapping_version is None else mapping_version.to_dict(),
                "topicConfigTable": {name: item.to_dict() for name, item in self.topic_config_table.items()},
                "topicQueueMappingDetailMap": self.topic_queue_mapping_detail_map,
                "topicQueueMappingInfoMap": self.topic_queue_mapping_info_map,
            }
        )

    @classmethod
    def from_dict(
        cls,
        fields: json_fields.Fields,
        *,
        check: Callable[[TopicConfig], None] | None = None,
        left_out: list[str] | None = None,
    ) -> TopicConfigSerializeWrapper:
        """Raises MalformedFrame. With `left_out`, a malformed topic is omitted, and the reason is added there.

        `check` raises MalformedFrame for a well-formed topic that the caller refuses.
        """
        table: dict[str, TopicConfig] = {}
        for name, value in json_fields.mapping(fields, "topicConfigTable").items():
            try:
                config = TopicConfig.from_dict(json_fields.as_object(value, f"topic config {name[:80]!r}"))
                if config.topic_name != name:
                    raise MalformedFrame(
                        f"topic config {name[:80]!r} calls itself {config.topic_name[:80]!r}"
                    )
                if check is not None:
                    check(config)
            except MalformedFrame as error:
                if left_out is None:
                    raise
                left_out.append(str(error))
                continue
            table[name] = config

        def present(name: str) -> dict[str, Any] | None:
            return None if fields.get(name) is None else json_fields.mapping(fields, name)

        mapping_version = present("mappingDataVersion")
        return cls(
            table,
            DataVersion.from_dict(json_fields.mapping(fields, "dataVersion")),
            None if mapping_version is None else DataVersion.from_dict(mapping_version),
            present("topicQueueMappingInfoMap"),
            present("topicQueueMappingDetailMap"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> TopicConfigSerializeWrapper:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "TopicConfigSerializeWrapper"))
