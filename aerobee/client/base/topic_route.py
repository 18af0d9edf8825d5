"""The route of a topic: its brokers, and the queues that producers and consumers derive from them. Pure.

Source: TopicRouteData, MQClientInstance.topicRouteData2TopicPublishInfo and ...2TopicSubscribeInfo. A producer uses
queues with the write bit at brokers that have a master (id 0); a consumer uses queues with the read bit. The queues of
a static topic are logical ones, whose broker name is `__syslo__global__`: the route names the leader of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting.body.queue_mapping import logical_queues
from aerobee.remoting.body.route import BrokerData, QueueData, TopicRouteData
from aerobee.remoting.body.topic_config import PERM_READ, PERM_WRITE
from aerobee.remoting.protocol import MASTER_ID, QUEUES_MAX
from aerobee.words import plural

COUNT_CHARS_MAX = 5  # maximum number of queues that an order config may assign to a broker


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A NameServer's route of a topic, sorted. Two routes are equal when no difference matters to a client."""

    topic: str
    queue_datas: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_topic_conf: str | None = None
    logical: tuple[
        tuple[MessageQueue, str], ...
    ] = ()  # static topic: each logical queue and the broker that leads it

    def broker(self, broker_name: str) -> BrokerData | None:
        return next((broker for broker in self.brokers if broker.broker_name == broker_name), None)


def parse_route(topic: str, body: bytes) -> TopicRoute:
    """Read a 105 answer. Raises MalformedFrame when it is not one, or when a broker has more than QUEUES_MAX queues."""
    data = TopicRouteData.decode(body)
    for queues in data.queue_datas:
        if max(queues.read_queue_nums, queues.write_queue_nums) > QUEUES_MAX:
            raise MalformedFrame(
                f"the route of topic {topic} gives {queues.broker_name[:60]} {plural(queues.read_queue_nums, 'queue')} to read and "
                f"{queues.write_queue_nums} to write: a broker has at most {QUEUES_MAX}"
            )
    return TopicRoute(
        topic,
        tuple(sorted(data.queue_datas, key=lambda item: item.broker_name)),
        tuple(sorted(data.broker_datas, key=lambda item: item.broker_name)),
        data.order_topic_conf or None,
        tuple(sorted(logical_queues(topic, data.queue_mappings()).items())),
    )


def publish_queues(route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Queues that a producer may send to; an order config, if present, determines them."""
    if route.order_topic_conf is not None:
        return _ordered_queues(route.topic, route.order_topic_conf)
    if route.logical:
        return tuple(queue for queue, leader in route.logical if _has_master(route, leader))
    return tuple(
        MessageQueue(route.topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_WRITE and _has_master(route, data.broker_name)
        for queue_id in range(data.write_queue_nums)
    )


def masterless(route: TopicRoute) -> tuple[str, ...]:
    """Names of the route's brokers without a master, which have only slaves."""
    return tuple(each.broker_name for each in route.brokers if MASTER_ID not in each.broker_addrs)


def _has_master(route: TopicRoute, broker_name: str) -> bool:
    broker = route.broker(broker_name)
    return broker is not None and MASTER_ID in broker.broker_addrs


def _ordered_queues(topic: str, conf: str) -> tuple[MessageQueue, ...]:
    queues: list[MessageQueue] = []
    for part in conf.split(";"):
        name, separator, count = part.partition(":")
        if not separator:
            continue
        if not (count.isascii() and count.isdigit() and len(count) <= COUNT_CHARS_MAX):
            raise MalformedFrame(f"order config of topic {topic} holds {part!r}; broker:count was expected")
        queues.extend(MessageQueue(topic, name, queue_id) for queue_id in range(int(count)))
    return tuple(queues)


def subscribe_queues(route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Queues that a consumer reads, sorted."""
    if route.logical:
        return tuple(queue for queue, _ in route.logical)
    return tuple(
        sorted(
            MessageQueue(route.topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )
    )


def from_template(topic: str, template: TopicRoute, queue_count_max: int) -> TopicRoute:
    """The route of a topic that does not exist yet, as the brokers will create it from TBW102."""
    datas = []
    for data in template.queue_datas:
        count = min(queue_count_max, data.read_queue_nums)
        datas.append(replace(data, read_queue_nums=count, write_queue_nums=count))
    return TopicRoute(topic, tuple(datas), template.brokers)
