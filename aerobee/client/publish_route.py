"""The route of a topic: which brokers have it, and the queues a producer or a consumer derives from that. Pure.

Source: TopicRouteData, MQClientInstance.topicRouteData2TopicPublishInfo and ...2TopicSubscribeInfo. A producer uses
queues with the write bit at brokers that have a master (id 0); a consumer uses queues with the read bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue

PERM_WRITE = 2
PERM_READ = 4
MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker has. `perm`: 1 inherit, 2 write, 4 read."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerData:
    """Addresses of one broker name by broker id."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """What a nameserver answers for a topic. Compares equal when nothing that matters changed."""

    topic: str
    queue_datas: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_topic_conf: str | None = None

    def broker(self, broker_name: str) -> BrokerData | None:
        return next((broker for broker in self.brokers if broker.broker_name == broker_name), None)


def parse_route(topic: str, document: Any) -> TopicRoute:
    """Read a decoded 105 answer. Raises MalformedFrame when it is not one."""
    try:
        queue_datas = tuple(
            sorted(
                (
                    QueueData(
                        str(entry["brokerName"]),
                        int(entry["readQueueNums"]),
                        int(entry["writeQueueNums"]),
                        int(entry["perm"]),
                        int(entry.get("topicSysFlag") or 0),
                    )
                    for entry in document["queueDatas"]
                ),
                key=lambda data: data.broker_name,
            )
        )
        brokers = tuple(
            sorted((parse_broker(entry) for entry in document["brokerDatas"]), key=lambda b: b.broker_name)
        )
        order = document.get("orderTopicConf")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedFrame(f"the route of topic {topic} is not readable: {error!r}") from error
    return TopicRoute(topic, queue_datas, brokers, order if isinstance(order, str) and order else None)


def parse_broker(entry: Any) -> BrokerData:
    """Read one BrokerData object of a route or of the cluster info."""
    return BrokerData(
        str(entry.get("cluster") or ""),
        str(entry["brokerName"]),
        {int(broker_id): str(address) for broker_id, address in sorted(entry["brokerAddrs"].items())},
    )


def publish_queues(route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Queues that a producer may send to; an order config, where there is one, fixes them."""
    if route.order_topic_conf is not None:
        return _ordered_queues(route.topic, route.order_topic_conf)
    return tuple(
        MessageQueue(route.topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_WRITE
        and (broker := route.broker(data.broker_name)) is not None
        and broker.master is not None
        for queue_id in range(data.write_queue_count)
    )


def _ordered_queues(topic: str, conf: str) -> tuple[MessageQueue, ...]:
    queues: list[MessageQueue] = []
    for part in conf.split(";"):
        name, separator, count = part.partition(":")
        if not separator:
            continue
        if not count.isdigit():
            raise MalformedFrame(f"order config of topic {topic} holds {part!r}; broker:count was expected")
        queues.extend(MessageQueue(topic, name, queue_id) for queue_id in range(int(count)))
    return tuple(queues)


def subscribe_queues(route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Queues that a consumer reads, sorted."""
    return tuple(
        sorted(
            MessageQueue(route.topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_count)
        )
    )


def from_template(topic: str, template: TopicRoute, queue_count_max: int) -> TopicRoute:
    """The route of a topic that does not exist yet, as the brokers will create it from TBW102."""
    datas = []
    for data in template.queue_datas:
        count = min(queue_count_max, data.read_queue_count)
        datas.append(QueueData(data.broker_name, count, count, data.perm, data.topic_sys_flag))
    return TopicRoute(topic, tuple(datas), template.brokers)
