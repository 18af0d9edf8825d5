"""Admin calls on topics. Source: DefaultMQAdminExtImpl and the mqadmin commands of topics."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.client.admin.base import AdminCalls
from aerobee.client.base.results import QueueStats, TopicInfo
from aerobee.client.base.topic_route import TopicRoute
from aerobee.errors import QueryNotFound, TopicNotExist, TransportError, UsageError
from aerobee.message import MessageQueue, check_topic_name
from aerobee.remoting.body.group_list import GroupList
from aerobee.remoting.body.topic_config import SINGLE_TAG, TopicConfig
from aerobee.remoting.body.topic_list import TopicList
from aerobee.remoting.body.topic_stats import TopicStatsTable
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import boolean_text
from aerobee.remoting.protocol import ONLY_NEW_FIELD

QUEUE_COUNT = 8  # RocketMQ's default for updateTopic


class TopicCalls(AdminCalls):
    """Calls that create, delete, list and measure topics."""

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = QUEUE_COUNT,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: int = 6,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        only_new: bool = False,
    ) -> tuple[str, ...]:
        """Create a topic, or change an existing one; returns the addresses of its brokers.

        Applies to all masters, those of one cluster, or one broker (a name or an address). `perm`: 2 write, 4 read, 6
        both. `attributes` e.g. {"message.type": "FIFO"}. `only_new`: a broker that has the topic leaves it as it is;
        RocketMQ's brokers change it. A NameServer may know the topic a moment later.
        """
        check_topic_name(topic)
        for name, count in (
            ("queue_count", queue_count),
            ("read_queue_count", read_queue_count),
            ("write_queue_count", write_queue_count),
        ):
            if count is not None and not isinstance(count, int):
                raise UsageError(f"{name} is {count!r}: it must be a whole number")
        if perm not in (2, 4, 6, 7):
            raise UsageError(f"perm is {perm}: 2 is write, 4 read, 6 both")
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(read_queue_count or queue_count),
            "writeQueueNums": str(write_queue_count or queue_count),
            "perm": str(perm),
            "topicFilterType": SINGLE_TAG,
            "topicSysFlag": "0",
            "order": boolean_text(order),
            "attributes": ",".join(f"+{name}={value}" for name, value in (attributes or {}).items()),
            "force": "false",
        }
        if only_new:
            fields[ONLY_NEW_FIELD] = "true"
        masters = await self._masters(cluster, broker)
        await self._all(
            self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, dict(fields)) for address in masters
        )
        return tuple(masters)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> tuple[str, ...]:
        """Delete a topic and its messages at all masters (of one cluster), then its route at every nameserver."""
        check_topic_name(topic)
        masters = await self._masters(cluster, None)
        await self._all(
            self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}) for address in masters
        )
        ext = {"topic": topic} if cluster is None else {"topic": topic, "clusterName": cluster}
        await self._call_each_nameserver(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)
        return tuple(masters)

    async def topics(self, cluster: str | None = None) -> tuple[str, ...]:
        """All topics that a nameserver knows, retry and system topics too, sorted."""
        if cluster is None:
            answer = await self._call_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            answer = await self._call_nameserver(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})
        return tuple(sorted(TopicList.decode(answer.body).topic_list)) if answer.body else ()

    async def system_topics(self) -> tuple[str, ...]:
        """System topics of the brokers, and the topics named like the cluster and its brokers."""
        answer = await self._call_nameserver(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        names = TopicList.decode(answer.body)
        found = set(names.topic_list)
        if names.broker_addr:
            code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
            try:
                own = await self._call(names.broker_addr, code)
            except TransportError:  # the NameServer names one broker: every broker has the same list
                others = [
                    address for address in await self._masters(None, None) if address != names.broker_addr
                ]
                if not others:
                    raise
                own = await self._call(others[-1], code)
            found.update(TopicList.decode(own.body).topic_list)
        return tuple(sorted(found))

    async def topic_route(self, topic: str) -> TopicRoute:
        """The brokers and queues of a topic, read from a NameServer. Raises TopicNotExist."""
        self._session.check_open()
        return await self._session.routes.refresh(topic)

    async def topic_config(self, topic: str) -> tuple[TopicInfo, ...]:
        """The topic's settings at each of its brokers."""
        addresses = [address for _, address in await self._topic_addresses(topic)]
        return tuple([await self.topic_config_at(topic, address) for address in addresses])

    async def topic_config_at(self, topic: str, address: str) -> TopicInfo:
        """The topic's settings at one broker, which need not have registered it yet. Raises TopicNotExist."""
        answer = await self._call(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})
        config = TopicConfig.decode(answer.body)
        return TopicInfo(
            name=config.topic_name,
            broker_address=address,
            read_queue_count=config.read_queue_nums,
            write_queue_count=config.write_queue_nums,
            perm=config.perm,
            order=config.order,
            message_type=config.attributes.get("message.type", "UNSPECIFIED"),
            ack=config.attributes.get("ack.level", ""),
        )

    async def topic_stats(self, topic: str) -> tuple[QueueStats, ...]:
        """The ends of each queue of a topic, sorted by queue."""
        found: dict[MessageQueue, QueueStats] = {}
        for _, address in await self._topic_addresses(topic):
            answer = await self._call(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            for queue, offsets in TopicStatsTable.decode(answer.body).offset_table.items():
                found[queue] = QueueStats(
                    queue=queue,
                    min_offset=offsets.min_offset,
                    max_offset=offsets.max_offset,
                    last_update_ms=offsets.last_update_timestamp,
                )
        return tuple(found[queue] for queue in sorted(found))

    async def topic_groups(self, topic: str) -> tuple[str, ...]:
        """Groups that consume a topic: groups with online members, and groups with stored offsets."""
        found: set[str] = set()
        for _, address in await self._topic_addresses(topic):
            answer = await self._call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
            found.update(GroupList.decode(answer.body).group_list)
        return tuple(sorted(found))

    async def topic_exists(self, topic: str) -> bool:
        """True when a nameserver knows the topic."""
        try:
            await self.topic_route(topic)
        except TopicNotExist:
            return False
        return True

    async def order_config(self, topic: str) -> str | None:
        """The topic's order config ("broker-a:4;broker-b:4"), None when it has none."""
        try:
            answer = await self._call_nameserver(
                RequestCode.GET_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
            )
        except QueryNotFound:
            return None
        return answer.field("value")
