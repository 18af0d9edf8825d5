"""The readable queues of a topic at all brokers, as the nameservers know them, cached for 30 s per topic.

Source: TopicRouteInfoManager of the broker (RocketMQ), loadBalancePollNameServerInterval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue
from aerobee.remoting.body.queue_mapping import logical_queues
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.body.topic_config import PERM_READ
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand

log = logging.getLogger(__name__)

KEPT_S = 30.0
TOPICS_MAX = 10_000  # kept routes; the oldest goes
ASK_TIMEOUT_S = 3.0


class TopicQueues:
    """A callable: topic -> queues. When no nameserver answers, it returns only the queues of this broker."""

    def __init__(
        self,
        *,
        client: RemotingClient,
        nameservers: Callable[[], Sequence[str]],
        topics: TopicTable,
        identity: BrokerIdentity,
        clock: Clock,
    ) -> None:
        self._client = client
        self._nameservers = nameservers
        self._topics = topics
        self._identity = identity
        self._clock = clock
        self._kept: dict[str, tuple[float, list[MessageQueue]]] = {}

    async def __call__(self, topic: str) -> list[MessageQueue]:
        kept = self._kept.get(topic)
        if kept is not None and self._clock.monotonic() - kept[0] < KEPT_S:
            return kept[1]
        for address in self._nameservers():
            queues = await self._ask(address, topic)
            if queues is not None:
                while len(self._kept) >= TOPICS_MAX:
                    del self._kept[next(iter(self._kept))]
                self._kept.pop(topic, None)
                self._kept[topic] = (self._clock.monotonic(), queues)
                return queues
        config = self._topics.get(topic)
        count = config.read_queue_nums if config is not None and config.is_readable else 0
        return [MessageQueue(topic, self._identity.name, queue_id) for queue_id in range(count)]

    async def _ask(self, address: str, topic: str) -> list[MessageQueue] | None:
        """Return what one nameserver knows; None when it does not answer or does not know the topic."""
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        try:
            answer = await self._client.invoke(address, request, timeout_s=ASK_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                return None
            route = TopicRouteData.decode(answer.body)
        except AerobeeError as error:
            log.warning("nameserver %s does not tell the route of %s: %s", address, topic, error)
            return None
        infos = route.queue_mappings()
        if infos:
            return list(logical_queues(topic, infos))
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        ]
