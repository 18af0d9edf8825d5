"""Admin calls that keep a cluster in order: whole tables of topics and groups, clean-up, producers, queue entries, epochs.

Source: DefaultMQAdminExtImpl (RocketMQ 5.5.0). Each call is sent to one server by its address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from aerobee.caller import REMOTING
from aerobee.client.admin.base import AdminCalls
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from aerobee.remoting.body.topic_config import TopicConfig, TopicConfigSerializeWrapper
from aerobee.remoting.codes import RequestCode

PAGE = 2_000
LIST_BYTES_MAX = 512 << 10  # maximum body of one request that carries topics or groups
LIST_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    """A producer that is connected to a broker. `seen_ms`: its last heartbeat there."""

    group: str
    client_id: str
    address: str
    language: str
    version: int
    seen_ms: int
    protocol: str = REMOTING


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A consume queue entry: physical offset and size of the record, hash of its tag.

    `is_wanted`: whether the filter of the named group matches; None when no group was named.
    """

    offset: int
    physical_offset: int
    record_bytes: int
    tag_code: int
    is_wanted: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Range of the log that one master wrote; `end_offset` is None for the current epoch."""

    number: int
    start_offset: int
    end_offset: int | None


class UpkeepCalls(AdminCalls):
    """Calls for occasional maintenance by an operator."""

    async def topic_table(self, address: str) -> dict[str, TopicConfig]:
        """Every topic of a broker, system topics included."""
        answer = await self._call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return dict(TopicConfigSerializeWrapper.decode(answer.body).topic_config_table)

    async def put_topics(self, address: str, topics: Iterable[TopicConfig]) -> None:
        """Create or update these topics at a broker. The broker applies the topics of one request all or not at
        all."""
        rows = [replace(each, attributes=_as_changes(each.attributes)).to_dict() for each in topics]
        for part in _parts(rows):
            body = fastjson.dumps({"topicConfigList": part})
            await self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)

    async def group_table(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Every group with settings at a broker, system groups included."""
        table: dict[str, SubscriptionGroupConfig] = {}
        while True:
            ext = {"groupSeq": str(len(table)), "maxGroupNum": str(PAGE), "dataVersion": ""}
            answer = await self._call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ext)
            before = len(table)
            table.update(SubscriptionGroupWrapper.decode(answer.body).subscription_group_table)
            # A reply without a total is complete; a page without a new row ends the loop in any case.
            if len(table) >= answer.integer("totalGroupNum", 0) or len(table) == before:
                return table

    async def put_groups(self, address: str, groups: Iterable[SubscriptionGroupConfig]) -> None:
        """Create or update these groups at a broker. The broker applies the groups of one request all or not at
        all."""
        rows = [replace(each, attributes=_as_changes(each.attributes)).to_dict() for each in groups]
        for part in _parts(rows):
            body = fastjson.dumps({"groupConfigList": part})
            await self._call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body)

    async def delete_expired_files(self, address: str) -> None:
        """Let a broker apply retention now instead of at its deletion hour: it deletes expired log files, and queue
        files that point into them."""
        await self._call(address, RequestCode.DELETE_EXPIRED_COMMITLOG)
        await self._call(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def delete_unused_queues(self, address: str) -> None:
        """Let a broker delete the queues of topics that no longer exist."""
        await self._call(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def all_producers(self, address: str) -> tuple[ProducerInfo, ...]:
        """Every producer that is connected to a broker, sorted by group and client."""
        answer = await self._call(address, RequestCode.GET_ALL_PRODUCER_INFO)
        data = json_fields.mapping(fastjson.loads_trusted(answer.body, "ProducerTableInfo"), "data")
        found = [
            ProducerInfo(
                group=group,
                client_id=json_fields.text(row, "clientId"),
                address=json_fields.text(row, "remoteIP").removeprefix("/"),
                language=json_fields.text(row, "language"),
                version=json_fields.integer(row, "version"),
                seen_ms=json_fields.integer(row, "lastUpdateTimestamp"),
                protocol=json_fields.text(row, "protocol") or REMOTING,
            )
            for group in data
            for row in json_fields.objects(data, group)
        ]
        return tuple(sorted(found, key=lambda each: (each.group, each.client_id, each.address)))

    async def queue_entries(
        self, address: str, queue: MessageQueue, offset: int, *, count: int = 32, group: str = ""
    ) -> tuple[QueueEntry, ...]:
        """Entries of a consume queue from `offset` on, at most `count`; with the filter of a group that is online.

        Raises RemoteSystemError for a queue without a message.
        """
        ext = {
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "index": str(offset),
            "count": str(count),
            "consumerGroup": group,
        }
        answer = await self._call(address, RequestCode.QUERY_CONSUME_QUEUE, ext)
        fields = fastjson.loads_trusted(answer.body, "QueryConsumeQueueResponseBody")
        first = max(offset, json_fields.integer(fields, "minQueueIndex"))
        return tuple(
            QueueEntry(
                offset=first + number,
                physical_offset=json_fields.integer(row, "physicOffset"),
                record_bytes=json_fields.integer(row, "physicSize"),
                tag_code=json_fields.integer(row, "tagsCode"),
                is_wanted=json_fields.boolean(row, "eval") if group else None,
            )
            for number, row in enumerate(json_fields.objects(fields, "queueData"))
        )

    async def epochs(self, address: str) -> tuple[Epoch, ...]:
        """The epochs of the log of a broker in controller mode. Raises RequestNotSupported for other brokers."""
        answer = await self._call(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        rows = json_fields.objects(fastjson.loads_trusted(answer.body, "EpochEntryCache"), "epochList")
        ends = [json_fields.integer(row, "endOffset") for row in rows]
        return tuple(
            Epoch(
                number=json_fields.integer(row, "epoch"),
                start_offset=json_fields.integer(row, "startOffset"),
                end_offset=end if number + 1 < len(rows) else None,
            )
            for number, (row, end) in enumerate(zip(rows, ends, strict=True))
        )


def _as_changes(attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes as a request encodes them: each attribute to set with a leading plus."""
    return {name if name.startswith(("+", "-")) else f"+{name}": value for name, value in attributes.items()}


def _parts(rows: list[dict[str, object]]) -> Iterable[list[dict[str, object]]]:
    """The rows, split into groups that fit one request."""
    part: list[dict[str, object]] = []
    part_bytes = 0
    for row in rows:
        row_bytes = len(fastjson.dumps(row))
        if part and (part_bytes + row_bytes > LIST_BYTES_MAX or len(part) >= LIST_MAX):
            yield part
            part, part_bytes = [], 0
        part.append(row)
        part_bytes += row_bytes
    if part:
        yield part
