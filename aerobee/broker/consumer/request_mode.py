"""Request modes, pull or POP, of groups per topic: config/messageRequestMode.json (MessageRequestModeManager).

    {"messageRequestModeMap":{topic:{group:{"consumerGroup","mode":"PULL"|"POP","popShareQueueNum":n,"topic"}}}}

A group and topic without an entry have the broker's default (defaultMessageRequestMode); a group's own retry topic is always
pulled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.table_changes import TableChanges
from aerobee.errors import MalformedFrame, StoreError
from aerobee.message import RETRY_PREFIX
from aerobee.remoting.body import json_fields

PULL, POP = "PULL", "POP"
MODES = (PULL, POP)
FILE_NAME = "messageRequestMode.json"


@dataclass(frozen=True, slots=True)
class RequestMode:
    """Request mode of one group and topic. With POP, a member pops its own share of the queues and the shares of
    `share_queue_num` other members; 0 and below, or at least the number of members: every member pops all queues."""

    topic: str
    group: str
    mode: str = PULL
    share_queue_num: int = -1

    def to_dict(self) -> dict[str, Any]:
        """As an entry of the file and of the body of 401."""
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.share_queue_num,
            "topic": self.topic,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> RequestMode:
        """Read such an entry. Raises MalformedFrame for a field of another type."""
        return cls(
            json_fields.text(fields, "topic"),
            json_fields.text(fields, "consumerGroup"),
            json_fields.enum_name(fields, "mode", MODES, PULL),
            json_fields.integer(fields, "popShareQueueNum"),
        )


_Table = dict[str, dict[str, RequestMode]]
_Value = tuple[_Table]


class RequestModes:
    """The request modes. A change is on disk before it takes effect."""

    def __init__(self, *, live: LiveConfig, file: ConfigFile | None = None) -> None:
        self._live = live
        self._file = file
        self._table: _Table = {}
        self._changes: TableChanges[_Value, None] = TableChanges(
            self, run=None if file is None else file.run, what="request modes"
        )

    def get(self, topic: str, group: str) -> RequestMode:
        """The group's mode for the topic; without an explicit mode, the default of the settings."""
        if topic.startswith(RETRY_PREFIX):
            return RequestMode(topic, group)
        found = self._table.get(topic, {}).get(group)
        if found is not None:
            return found
        config = self._live.value
        return RequestMode(
            topic, group, config.default_message_request_mode, config.default_pop_share_queue_num
        )

    @property
    def count(self) -> int:
        """Number of pairs of topic and group with an explicit mode."""
        return sum(map(len, self._table.values()))

    def has(self, topic: str, group: str) -> bool:
        """Whether this topic and group have an explicit mode."""
        return group in self._table.get(topic, ())

    async def put_async(self, mode: RequestMode) -> None:
        """Durable on return. Raises StoreError; nothing is changed then."""

        def put(value: _Value) -> _Value:
            (table,) = value
            return ({**table, mode.topic: {**table.get(mode.topic, {}), mode.group: mode}},)

        await self._changes.change(put, None)

    async def settled(self) -> None:
        """Return when every requested change is in the file, or refused."""
        await self._changes.settled()

    # --- for table_changes.py

    def current(self) -> _Value:
        return (self._table,)

    def sealed(self, value: _Value) -> _Value:
        return value

    def take(self, value: _Value, notes: Sequence[None]) -> None:
        (self._table,) = value

    def write(self, value: _Value) -> None:
        assert self._file is not None
        self._file.write(_content(value[0]))

    # --- the file

    def copy_from(self, tree: json_fields.Fields) -> None:
        """Replace the table by a master's (the body of 402). The file follows. Raises MalformedFrame."""
        table = _parse(tree)
        if table != self._table:
            self.take((table,), ())
            self._changes.write_soon()

    def load(self) -> None:
        """Read the file; a missing file is an empty table. Raises StoreError for a damaged one."""
        tree = self._file.read() if self._file is not None else None
        if tree is None:
            return
        try:
            self._table = _parse(tree)
        except MalformedFrame as error:
            raise StoreError(f"config/{FILE_NAME} is not a table of request modes: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The file's content; also the body of GET_ALL_MESSAGE_REQUEST_MODE (402)."""
        return _content(self._table)


def _content(table: _Table) -> dict[str, Any]:
    return {
        "messageRequestModeMap": {
            topic: {group: mode.to_dict() for group, mode in groups.items()}
            for topic, groups in table.items()
        }
    }


def _parse(tree: json_fields.Fields) -> _Table:
    return {
        topic: {
            group: RequestMode.from_dict(json_fields.as_object(value, f"the mode of {group[:80]!r}"))
            for group, value in json_fields.as_object(groups, f"topic {topic[:80]!r}").items()
        }
        for topic, groups in json_fields.mapping(tree, "messageRequestModeMap").items()
    }
