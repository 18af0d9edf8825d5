"""Admin calls on static topics, whose logical queues stay the same while brokers come and go.

Source: UpdateStaticTopicSubCommand, RemappingStaticTopicSubCommand, MQAdminUtils (RocketMQ).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from aerobee.client.admin.base import AdminCalls
from aerobee.client.base.static_plan import StaticPart, StaticTopic, decided, gathered, grown, moved, settled
from aerobee.errors import TopicNotExist, UsageError
from aerobee.message import check_topic_name
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.queue_mapping import QueueMapping
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.body.topic_stats import TopicStatsTable
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import boolean_text
from aerobee.remoting.protocol import MASTER_ID


class StaticTopicCalls(AdminCalls):
    """Create static topics, and move their queues."""

    async def static_topic(self, topic: str) -> StaticTopic:
        """The topic's mappings at all masters. Raises TopicNotExist, and UsageError for a topic that is not
        static."""
        check_topic_name(topic)
        parts = {}
        for name, address in (await self._masters_by_name()).items():
            part = await self._static_part(topic, address)
            if part is not None:
                parts[name] = part
        if not parts:
            raise TopicNotExist(17, f"no broker has topic {topic}")
        return gathered(topic, parts)

    async def create_static_topic(
        self,
        topic: str,
        queue_count: int,
        *,
        brokers: Collection[str] | None = None,
        gives_lost: bool = False,
    ) -> StaticTopic:
        """Create a static topic with this number of logical queues, or add queues to an existing one; at `brokers`
        (names), or at all masters.

        Every broker has its part on return. Repeat the call to complete an interrupted change. The call refuses
        queues without a leader, because their broker may only be down. With `gives_lost` other brokers lead them,
        from offset 0 on. Raises UsageError, RemoteError.
        """
        now, wanted = await self._known(topic, brokers)
        target = grown(now, queue_count, wanted, self._session.clock.now_ms(), gives_lost=gives_lost)
        if now.is_whole and target.queues == now.queues:
            return now
        return await self._carry_out(target)

    async def move_static_topic(
        self, topic: str, brokers: Collection[str], *, gives_lost: bool = False
    ) -> StaticTopic:
        """Move as few logical queues as possible, so that only these brokers (names) lead queues; sends continue meanwhile.

        A moved queue continues at a logical offset behind the previous ones: nothing is copied, and consumers read the old part from
        the broker that has it. The same call completes an interrupted move. `gives_lost`: as create_static_topic(). Raises UsageError,
        RemoteError.
        """
        now, wanted = await self._known(topic, brokers)
        if not now.parts:
            raise TopicNotExist(17, f"no broker has topic {topic}")
        if not now.is_whole:
            target = settled(now, wanted, self._session.clock.now_ms(), gives_lost=gives_lost)
            now = await self._carry_out(target)
        target = moved(now, wanted, self._session.clock.now_ms())
        return now if target.leaders == now.leaders else await self._carry_out(target)

    async def _known(
        self, topic: str, brokers: Collection[str] | None
    ) -> tuple[StaticTopic, tuple[str, ...]]:
        """The existing static topic (empty for a new one), and the names of the chosen brokers."""
        check_topic_name(topic)
        masters = await self._masters_by_name()
        for name in brokers or ():
            if name not in masters:
                raise UsageError(
                    f"the nameserver knows no master named {name!r}; it knows {', '.join(sorted(masters)) or 'none'}"
                )
        try:
            now = await self.static_topic(topic)
        except TopicNotExist:
            now = gathered(topic, {})
        return now, tuple(sorted(set(brokers or masters)))

    async def _carry_out(self, target: StaticTopic) -> StaticTopic:
        """Write a target to the brokers in an order that loses no message, and return the resulting topic.

        First the new leaders, so that they accept writes; then the previous leaders, which refuse writes from then
        on. Only then the final offsets of the old parts are known, and with them the logical offsets of the new
        parts.
        """
        takers = {items[-1].broker_name for items in target.undecided.values()}
        givers = {items[-2].broker_name for items in target.undecided.values()}
        await self._write(target, takers)
        await self._write(target, givers - takers)
        if takers:
            target = decided(target, await self._physical_ends(target.topic, givers))
            await self._write(target, takers)
        target = self._with_all(target, await self._masters_by_name())
        await self._write(target, target.parts.keys() - takers - givers)
        return target

    def _with_all(self, target: StaticTopic, masters: Iterable[str]) -> StaticTopic:
        """Brokers without a queue of the topic get its mapping, too."""
        nothing = {
            name: StaticPart(
                TopicConfig(target.topic, 0, 0), QueueMapping(target.topic, target.total, name, target.epoch)
            )
            for name in masters
        }
        return StaticTopic(
            target.topic, target.epoch, target.total, target.queues, {**nothing, **target.parts}
        )

    async def _write(self, target: StaticTopic, names: Collection[str]) -> None:
        masters = await self._masters_by_name()
        for name in sorted(names):
            part, address = target.parts[name], _address_of(name, masters, target.topic)
            if part.mapping is None:
                continue
            config = part.config
            fields = {
                "topic": config.topic_name,
                "defaultTopic": "TBW102",
                "readQueueNums": str(config.read_queue_nums),
                "writeQueueNums": str(config.write_queue_nums),
                "perm": str(config.perm),
                "topicFilterType": config.topic_filter_type,
                "topicSysFlag": str(config.topic_sys_flag),
                "order": boolean_text(config.order),
                "force": "false",
            }
            body = fastjson.dumps(part.mapping.to_dict())
            await self._call(address, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields, body)

    async def _physical_ends(self, topic: str, names: Collection[str]) -> dict[tuple[str, int], int]:
        masters = await self._masters_by_name()
        ends = {}
        for name in sorted(names):
            address = _address_of(name, masters, topic)
            answer = await self._call(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            for queue, offsets in TopicStatsTable.decode(answer.body).offset_table.items():
                ends[queue.broker_name, queue.queue_id] = offsets.max_offset
        return ends

    async def _static_part(self, topic: str, address: str) -> StaticPart | None:
        try:
            answer = await self._call(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})
        except TopicNotExist:
            return None
        fields = fastjson.loads_trusted(answer.body, "a topic's configuration")
        mapping = fields.get("mappingDetail")
        return StaticPart(
            TopicConfig.from_dict(fields),
            None
            if mapping is None
            else QueueMapping.from_dict(json_fields.as_object(mapping, "mappingDetail")),
        )

    async def _masters_by_name(self) -> dict[str, str]:
        return {
            info.broker_name: info.address for info in await self.brokers() if info.broker_id == MASTER_ID
        }


def _address_of(name: str, masters: Mapping[str, str], topic: str) -> str:
    address = masters.get(name)
    if address is None:
        raise UsageError(f"{name} has a part of {topic} and no master: start it, and try again")
    return address
