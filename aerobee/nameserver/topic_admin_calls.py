"""Changes made by administrators: write permission of a broker, deleting and adding topics.

Source: DefaultRequestProcessor (RocketMQ). Each change lasts until a broker overrides it: a removed
permission until the broker's data version changes, a deletion until a broker registers the topic again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.nameserver.bounds import NameServerBounds
from aerobee.nameserver.route_table import RouteTable, TopicQueues
from aerobee.remoting import fastjson
from aerobee.remoting.body.register_broker import check_topic_name
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.wire_name import check_wire_name

log = logging.getLogger("aerobee.nameserver")
BROKER_CHARS_MAX = 255  # maximum length of a name, as in registrations


class TopicAdminCalls:
    """Request handlers for administrators, on one table."""

    def __init__(self, table: RouteTable, bounds: NameServerBounds) -> None:
        self._table = table
        self._bounds = bounds

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
        }

    def wipe_write_perm(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        name = request.text("brokerName")
        count = self._table.wipe_write_perm(name)
        log.info("write permission of broker %s wiped on %d topics, asked by %s", name, count, peer.host_port)
        return request.reply(ext={"wipeTopicCount": str(count)})

    def add_write_perm(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        name = request.text("brokerName")
        count = self._table.add_write_perm(name)
        log.info("write permission of broker %s added on %d topics, asked by %s", name, count, peer.host_port)
        return request.reply(ext={"addTopicCount": str(count)})

    def delete_topic(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        topic = request.text("topic")
        if (refused := _refuse_name(request, topic)) is not None:
            return refused
        cluster = request.field("clusterName") or None
        self._table.delete_topic(topic, cluster)
        log.info("topic %s deleted (cluster %s), asked by %s", topic, cluster or "any", peer.host_port)
        return request.reply()

    def register_topic(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        topic = request.text("topic")
        if (refused := _refuse_name(request, topic)) is not None:
            return refused
        queues = _queues(request.body)
        for name, each in queues.items():
            self._bounds.check_topics(self._table, name, {topic: each}, peer.address)
        unknown = self._table.register_topic(topic, queues)
        if unknown:
            # RocketMQ replies 0 here too, and its tools expect that: the topic stays unknown until its
            # brokers are registered.
            log.warning("topic %s not registered, brokers %s are not known", topic, ", ".join(unknown))
        return request.reply()


def _refuse_name(request: RemotingCommand, topic: str) -> RemotingCommand | None:
    try:
        check_topic_name(topic)
    except MalformedFrame as error:
        return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
    return None


def _queues(body: bytes) -> dict[str, TopicQueues]:
    """Read the queueDatas of a TopicRouteData. Raises MalformedFrame."""
    if not body:
        return {}
    root = fastjson.loads(body)
    entries = root.get("queueDatas") if isinstance(root, dict) else None
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise MalformedFrame("queueDatas is not an array")
    return dict(_queue_data(entry) for entry in entries)


def _queue_data(entry: Any) -> tuple[str, TopicQueues]:
    if not isinstance(entry, dict) or not isinstance(entry.get("brokerName"), str):
        raise MalformedFrame("an entry of queueDatas is not an object with a brokerName")
    counts = [entry.get(key, 0) for key in ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise MalformedFrame(f"the queue data of broker {entry['brokerName'][:60]!r} holds no whole numbers")
    name = check_wire_name(entry["brokerName"], "brokerName of queueDatas", BROKER_CHARS_MAX)
    return name, TopicQueues(*counts)
