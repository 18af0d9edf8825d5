"""Removes expired parts of a static topic's mapping.

- The oldest part of a logical queue that this broker leads goes when its physical queue holds no message any more: retention
  took them all. Offsets of later parts do not change. - A former leader's list of a queue's parts is removed when the queue was moved again since: clients that still come here are redirected to the leader by the route, not by this list.

In the hours of `deleteWhen`, each five minutes. Offsets that a group committed at a broker whose part was removed are
no longer searched, as in RocketMQ.

Source: TopicQueueMappingCleanService (RocketMQ). Difference: a mapping that changed while this broker queried others is left
for the next round; RocketMQ overwrites it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from aerobee.broker.state.feature import Feature
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.peer_brokers import PeerBrokers
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError, RemoteError
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.queue_mapping import Items, QueueMapping
from aerobee.remoting.body.topic_stats import TopicStatsTable
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand

log = logging.getLogger(__name__)

INTERVAL_S = 300.0
Hosted = dict[int, Items]


def holders_of_oldest(mapping: QueueMapping) -> set[str]:
    """The brokers whose queues must be checked: those with the oldest parts of the queues that this broker leads."""
    return {items[0].broker_name for _, items in _led_with_parts(mapping)}


def without_expired(mapping: QueueMapping, stats: Mapping[str, TopicStatsTable]) -> Hosted:
    """The mapping without each oldest part that has no message. `stats`: by broker name."""
    hosted = dict(mapping.hosted)
    for queue_id, items in _led_with_parts(mapping):
        oldest = items[0]
        table = stats.get(oldest.broker_name)
        queue = MessageQueue(mapping.topic, oldest.broker_name, oldest.queue_id)
        offsets = None if table is None else table.offset_table.get(queue)
        if offsets is None or offsets.max_offset < 0:
            continue  # nothing is known of it, which is no reason to forget it
        if offsets.max_offset in (0, offsets.min_offset):
            hosted[queue_id] = items[1:]
    return hosted


def given_away(mapping: QueueMapping) -> dict[int, str]:
    """Logical queues that were led here -> the broker that was given them."""
    return {
        queue_id: items[-1].broker_name
        for queue_id, items in mapping.hosted.items()
        if items and items[-1].broker_name != mapping.broker_name
    }


def without_moved_on(
    mapping: QueueMapping, leaders: Mapping[int, str], theirs: Mapping[str, QueueMapping]
) -> Hosted:
    """The mapping without lists whose queue has another leader than the list states.

    `leaders`: by the route; `theirs`: the mapping that each of them has. A leader has to confirm it by a mapping of the same
    epoch and size, in which it leads.
    """
    hosted = dict(mapping.hosted)
    for queue_id, given_to in given_away(mapping).items():
        leader = leaders.get(queue_id, given_to)
        remote = theirs.get(leader)
        if leader == given_to or remote is None:
            continue
        if (remote.total_queues, remote.epoch) != (mapping.total_queues, mapping.epoch):
            continue
        items = remote.hosted.get(queue_id)
        if items and items[-1].broker_name == leader:
            del hosted[queue_id]
    return hosted


def _led_with_parts(mapping: QueueMapping) -> list[tuple[int, Items]]:
    return [
        (queue_id, items)
        for queue_id, items in sorted(mapping.hosted.items())
        if len(items) > 1 and items[-1].broker_name == mapping.broker_name
    ]


class MappingCleaning(Feature):
    """Cleans the mappings of one broker while it is a master."""

    name = "static topics"

    def __init__(
        self,
        *,
        mappings: QueueMappings,
        brokers: PeerBrokers,
        identity: BrokerIdentity,
        clock: Clock,
        hours: Callable[[], str],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._mappings = mappings
        self._brokers = brokers
        self._identity = identity
        self._clock = clock
        self._hours = hours
        self._spawn = spawn
        self._timer: Timer | None = None

    def start(self) -> None:
        self._timer = self._clock.call_later(INTERVAL_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._clock.call_later(INTERVAL_S, self._tick)
        hour = time.localtime(self._clock.now_ms() / 1000).tm_hour
        if self._mappings.by_topic and hour in {int(each) for each in self._hours().split(";") if each}:
            self._spawn(self.clean())

    async def clean(self) -> None:
        """Check every mapping once. Unknown cases are left for the next round."""
        for topic in list(self._mappings.by_topic):
            for look in (self._expired, self._moved_on):
                mapping = self._mappings.get(topic)
                if mapping is None or mapping.broker_name != self._identity.name:
                    break
                try:
                    hosted = await look(mapping)
                    if hosted == dict(mapping.hosted) or self._mappings.get(topic) is not mapping:
                        continue
                    await self._mappings.replace(mapping, hosted)
                except AerobeeError as error:
                    log.warning("the mapping of static topic %s is not cleaned now: %s", topic, error)
                    break
                log.info("the mapping of static topic %s was cleaned: %s, before %s", topic, hosted, mapping)

    async def _expired(self, mapping: QueueMapping) -> Hosted:
        stats = {}
        for broker in sorted(holders_of_oldest(mapping)):
            ext = {"topic": mapping.topic, "bname": broker, "lo": "false"}
            answer = await self._ask(broker, RequestCode.GET_TOPIC_STATS_INFO, ext)
            stats[broker] = TopicStatsTable.decode(answer.body)
        return without_expired(mapping, stats)

    async def _moved_on(self, mapping: QueueMapping) -> Hosted:
        gone = given_away(mapping)
        if not gone:
            return dict(mapping.hosted)
        leaders = await self._brokers.leaders(mapping.topic)
        theirs = {}
        for broker in sorted({leaders[queue_id] for queue_id in gone if queue_id in leaders}):
            if broker == mapping.broker_name:
                continue
            ext = {"topic": mapping.topic, "bname": broker, "lo": "true"}
            answer = await self._ask(broker, RequestCode.GET_TOPIC_CONFIG, ext)
            fields = fastjson.loads_trusted(answer.body, "a topic's configuration").get("mappingDetail")
            if fields:
                theirs[broker] = QueueMapping.from_dict(json_fields.as_object(fields, "its mapping"))
        return without_moved_on(mapping, leaders, theirs)

    async def _ask(self, broker: str, code: RequestCode, ext: dict[str, str]) -> RemotingCommand:
        answer = await self._brokers.invoke(broker, RemotingCommand(code, ext))
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteError(answer.code, answer.remark)
        return answer
