"""AEROBEE_LIST_POPS: a group's invisible messages, their time and their consumer. An Aerobee-specific call, for
operators.

Request `consumerGroup`, `topic` (optional), `countMax` (1 to 1,000). Answer:

    {"total": messages that are invisible, "entries": [{"topic","queueId","offset","popTime","visibleAt","ordered",
      "consumer": address it was popped from, "clientId": its id while it is connected; both "" when not known}]}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.pop.engine import PopEngine
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer

COUNT_MAX = 1_000


class InvisibleCalls:
    """The handler of AEROBEE_LIST_POPS."""

    def __init__(self, *, engine: PopEngine, consumers: ConsumerRegistry, clock: Clock) -> None:
        self._engine = engine
        self._consumers = consumers
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.AEROBEE_LIST_POPS: self.list_pops}

    def list_pops(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """Aerobee-specific: a group's delivered, unacknowledged messages as JSON."""
        group = request.text("consumerGroup")
        topic = request.field("topic") or None
        count_max = request.integer("countMax", 100)
        if not 1 <= count_max <= COUNT_MAX:
            raise MalformedFrame(f"countMax is {count_max}, must be between 1 and {COUNT_MAX}")
        client_ids = self._client_ids(group)
        total = 0
        entries: list[dict[str, Any]] = []
        for entry in (*self._held(group, topic), *self._in_order(group, topic)):
            total += 1
            if len(entries) < count_max:
                entries.append({**entry, "clientId": client_ids.get(str(entry["consumer"]), "")})
        return request.reply(body=fastjson.dumps({"total": total, "entries": entries}))

    def _client_ids(self, group: str) -> dict[str, str]:
        members = self._consumers.group(group)
        if members is None:
            return {}
        return {channel.peer.address: channel.client_id for channel in members.channels.values()}

    def _held(self, group: str, topic: str | None) -> Iterator[dict[str, Any]]:
        for entry in self._engine.in_flight.out(group):
            point = entry.point
            if not _is_of(point.topic, group, topic):
                continue
            for offset in point.unacked:
                yield {
                    "topic": point.topic,
                    "queueId": point.queue_id,
                    "offset": offset,
                    "popTime": point.pop_time,
                    "visibleAt": point.revive_time,
                    "ordered": False,
                    "consumer": entry.consumer,
                }

    def _in_order(self, group: str, topic: str | None) -> Iterator[dict[str, Any]]:
        now_ms = self._clock.now_ms()
        for name, holder, queue_id, block in self._engine.orders.blocks():
            if holder != group or not _is_of(name, group, topic):
                continue
            for i, offset in enumerate(block.offsets):
                visible_at = block.next_visible.get(offset, block.pop_time + block.invisible_ms)
                if not block.acked >> i & 1 and visible_at > now_ms:
                    yield {
                        "topic": name,
                        "queueId": queue_id,
                        "offset": offset,
                        "popTime": block.pop_time,
                        "visibleAt": visible_at,
                        "ordered": True,
                        "consumer": "",
                    }


def _is_of(name: str, group: str, topic: str | None) -> bool:
    """Whether a queue's topic is the requested one, or that one's retry topic."""
    return topic is None or name in (topic, f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}")
