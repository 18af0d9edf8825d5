"""Lists of topics: all, of a cluster, of the system, by unit flags. Source: DefaultRequestProcessor (RocketMQ)."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.nameserver.answers import topic_list_body
from aerobee.nameserver.config import LiveNameServerConfig
from aerobee.nameserver.route_table import RouteTable
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer


class TopicListCalls:
    """Request handlers for the lists. `enableTopicList` disables all but 305; `enableAllTopicList` only the
    list of all topics.
    """

    def __init__(self, *, table: RouteTable, config: LiveNameServerConfig) -> None:
        self._table = table
        self._config = config

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.cluster_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_sub_ununit_topics,
        }

    def all_topics(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        if not self._config.value.enable_all_topic_list:
            return _disabled(request, "enableAllTopicList")
        return request.reply(body=topic_list_body(self._table.topic_names()))

    def cluster_topics(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        return self._list(request, self._table.topics_of_cluster(request.text("cluster")))

    def system_topics(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """305: cluster and broker names, which are system topics too, and one broker that lists the others."""
        names: dict[str, None] = {}
        for cluster, brokers in self._table.clusters.items():
            names[cluster] = None
            names.update(dict.fromkeys(brokers))
        groups = self._table.group_views(listener=peer.listener)
        address = next(iter(groups[0].addresses.values())) if groups else None
        return request.reply(body=topic_list_body(list(names), address))

    def unit_topics(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        return self._list(request, self._table.topics_with_flags(unit=True, unit_sub=None))

    def unit_sub_topics(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        return self._list(request, self._table.topics_with_flags(unit=None, unit_sub=True))

    def unit_sub_ununit_topics(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        return self._list(request, self._table.topics_with_flags(unit=False, unit_sub=True))

    def _list(self, request: RemotingCommand, topics: list[str]) -> RemotingCommand:
        if not self._config.value.enable_topic_list:
            return _disabled(request, "enableTopicList")
        return request.reply(body=topic_list_body(topics))


def _disabled(request: RemotingCommand, key: str) -> RemotingCommand:
    return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"disable: {key} is false on this nameserver")
