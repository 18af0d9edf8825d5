"""Permission for a record that a request addresses by offset: checked against the record's topic, not the topic in the
request.

The gate admits a request by the names in its header, before any record is read (access/needs.py). A request with a
physical offset, a message id or a transaction id can address another user's record while naming its own topic. So its
handler checks again when it has read the record. A record without permission is answered like an unknown one.

RocketMQ 5.5.0 has no such check for 33, 36, 37, 309, 323. Core.
"""

from __future__ import annotations

from aerobee.access.gate import Gate
from aerobee.errors import MalformedRecord
from aerobee.message import Record, decode_record
from aerobee.property_names import REAL_TOPIC
from aerobee.remoting.body.pop_handle import topic_before_retry
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer
from aerobee.store.queue.queue_table import MULTI_DISPATCH
from aerobee.system_names import HALF_TOPIC, SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, WHEEL_TIMER_TOPIC

# The broker's own topics: REAL_TOPIC of their records is written by the broker.
_WAITING = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, WHEEL_TIMER_TOPIC})


class RecordAccess:
    """Without `gate` everything is allowed."""

    def __init__(self, gate: Gate | None = None) -> None:
        self._gate = gate

    def sees_all(self, peer: Peer) -> bool:
        """Whether no permission restricts this peer's reads, so that the bytes at any offset may be returned
        unchecked."""
        return self._gate is None or self._gate.exempts(peer)

    def may_view(self, peer: Peer, request: RemotingCommand, data: bytes) -> bool:
        """Whether the sender of `request` (code 33 or 309) has permission for the topic of this record, or for one of
        its LMQs. `data` is the record."""
        if self._gate is None or self._gate.exempts(peer):
            return True
        group = request.field("consumerGroup") or ""
        return any(
            self._gate.may_ask(peer, request, request.code, {"topic": topic, "consumerGroup": group})
            for topic in _topics_of(data)
        )

    def may_consume(self, peer: Peer, request: RemotingCommand, record: Record, group: str) -> bool:
        """Whether the sender of `request` may pull the topic of this record, or an LMQ that has it, for the group."""
        if self._gate is None or self._gate.exempts(peer):
            return True
        topics = (topic_before_retry(topic, group) for topic in _topics(record))
        return any(
            self._gate.may_ask(
                peer, request, RequestCode.PULL_MESSAGE, {"topic": topic, "consumerGroup": group}
            )
            for topic in topics
        )

    def may_decide(self, peer: Peer, request: RemotingCommand, topic: str) -> bool:
        """Whether the sender of `request` (code 37 or 323) has permission for the topic of the half message."""
        if self._gate is None or self._gate.exempts(peer):
            return True
        return self._gate.may_ask(peer, request, request.code, {"topic": topic})


def _topics_of(data: bytes) -> tuple[str, ...]:
    try:
        return _topics(decode_record(data, check_crc=False))
    except MalformedRecord:
        return ()


def _topics(record: Record) -> tuple[str, ...]:
    """The topics and LMQs of a record. A sender needs permission for each LMQ that it names."""
    own = record.properties.get(REAL_TOPIC, "") if record.topic in _WAITING else record.topic
    return tuple(filter(None, (own or record.topic, *record.properties.get(MULTI_DISPATCH, "").split(","))))
