"""Publish information of a producer's topics: routes in the form that sends need, fetched at their first use.

Follows the topicPublishInfoTable of DefaultMQProducerImpl. An entry is dropped when its route changes and recreated
at the next send. A topic that does not exist is sent to by the route of the template from which a broker will create it.
"""

from __future__ import annotations

import asyncio
import logging

from aerobee.client.base.config import ProducerConfig
from aerobee.client.base.topic_route import TopicRoute, from_template, masterless, publish_queues
from aerobee.client.producer.publish_info import PublishInfo, Target
from aerobee.client.session.codec import Template
from aerobee.client.session.send_header import SendTemplate
from aerobee.client.session.session import Session
from aerobee.errors import AerobeeError, NoMaster, NoNameServer, NotWritable, RouteError, TopicNotExist
from aerobee.message import MessageQueue
from aerobee.remoting.codes import RequestCode, request_name

log = logging.getLogger(__name__)

REFRESH_PAUSE_S = 0.2  # pause between two refreshes of a route that failed sends have shown to be stale


class PublishInfoTable:
    """Publish information by topic. Senders may read `known` directly, which saves a call."""

    def __init__(self, session: Session, group: str, config: ProducerConfig) -> None:
        self._session = session
        self._group = group
        self._config = config
        self.known: dict[str, PublishInfo] = {}
        self.once_known: set[str] = set()  # topics that had a usable route at some time
        self._refreshing: set[str] = set()  # topics whose route is refreshed after a failed send
        session.routes.on_change(self._route_changed)

    async def info(self, topic: str, deadline: float | None = None) -> PublishInfo:
        """Fetch the route of a topic, or of the template from which the broker will create it."""
        info = self.known.get(topic)
        if info is not None:
            return info
        if deadline is None:
            deadline = _now() + self._config.send_timeout_s
        routes = self._session.routes
        began = _now()
        try:
            async with asyncio.timeout(max(0.0, deadline - began)):
                try:
                    known, templated = routes.cached(topic), False
                    # A route without a writable queue may have changed since it was fetched.
                    usable = known is not None and publish_queues(known)
                    route = known if known is not None and usable else await routes.refresh(topic)
                except TopicNotExist as missing:
                    routes.watch((topic,))
                    try:
                        template = await routes.get(self._config.default_topic)
                    except TopicNotExist:
                        raise RouteError(
                            topic,
                            f"no nameserver knows topic {topic}: either it does not exist and no broker creates topics "
                            f"by itself (`aerobee topic create {topic}` creates it), or no broker runs (`aerobee doctor`)",
                        ) from missing
                    route = from_template(topic, template, self._config.default_topic_queue_count)
                    templated = True
        except TimeoutError as error:
            elapsed_s = _now() - began
            raise NoNameServer(
                f"no NameServer gave the route of topic {topic} within {elapsed_s:.1f} s",
                address=";".join(self._session.nameservers.addresses),
                request=request_name(RequestCode.GET_ROUTEINFO_BY_TOPIC),
                elapsed_s=elapsed_s,
                reason=f"{';'.join(self._session.nameservers.addresses)}: no answer within {elapsed_s:.1f} s",
            ) from error
        # Callers that waited for the same route share the first caller's result.
        return self.known.get(topic) or self._remember(route, templated)

    def _remember(self, route: TopicRoute, templated: bool) -> PublishInfo:
        queues = publish_queues(route)
        lacking = masterless(route)
        if not queues and lacking:
            raise NoMaster(
                route.topic,
                f"topic {route.topic} has no queue that can be written: {', '.join(lacking)} {'have' if len(lacking) > 1 else 'has'} "
                "no master now",
            )
        if not queues:
            raise NotWritable(
                route.topic,
                f"topic {route.topic} has no queue that can be written: its permission lacks the write bit",
            )
        config = self._config

        def template(code: RequestCode, broker_name: str, oneway: bool = False) -> Template:
            definition = SendTemplate(
                code=code.value,
                group=self._group,
                queue=MessageQueue(route.topic, broker_name, 0),
                default_topic=config.default_topic,
                default_queue_count=config.default_topic_queue_count,
                oneway=oneway,
            )
            return self._session.codec.template(definition)

        targets = {
            broker.broker_name: Target(
                broker.broker_name,
                address,
                template(RequestCode.SEND_MESSAGE_V2, broker.broker_name),
                template(RequestCode.SEND_BATCH_MESSAGE, broker.broker_name),
                template(RequestCode.SEND_MESSAGE_V2, broker.broker_name, oneway=True),
            )
            for broker in route.brokers
            if (address := broker.address_of_master()) is not None
        }
        info = PublishInfo(
            queues,
            targets,
            first_turn=self._session.random.getrandbits(16),
            created_from_template=templated,
            leaders=dict(route.logical),
            masterless=lacking,
            sends=None if self._session.meter is None else self._session.meter.of(route.topic).sends,
        )
        self.known[route.topic] = info
        self.once_known.add(route.topic)
        return info

    def _route_changed(self, route: TopicRoute) -> None:
        # The next send reads it again: a route without a writable queue is then an error of that send.
        self.known.pop(route.topic, None)
        if route.topic == self._config.default_topic:
            for topic, info in tuple(self.known.items()):
                if info.created_from_template:
                    del self.known[topic]

    async def refresh(self, topic: str, deadline: float) -> None:
        """Read the route again; the present one stays when that fails."""
        try:
            async with asyncio.timeout(max(0.0, deadline - _now())):
                await self._session.routes.refresh(topic)
        except TopicNotExist:
            self.known.pop(topic, None)  # the topic is deleted: the next try reads the template's route
        except (TimeoutError, AerobeeError) as error:
            log.info("route of topic %s is not refreshed: %s", topic, error)

    def refresh_behind(self, topic: str) -> None:
        """Refresh the route in the background, one refresh at a time and REFRESH_PAUSE_S apart."""
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._session.tasks.spawn(self._refresh_once(topic), f"stale-route-{topic}")

    async def _refresh_once(self, topic: str) -> None:
        try:
            await self.refresh(topic, _now() + self._config.send_timeout_s)
            await self._session.clock.sleep(REFRESH_PAUSE_S)
        finally:
            self._refreshing.discard(topic)


def target_of(info: PublishInfo, queue: MessageQueue) -> Target:
    """The broker of a queue. Raises RouteError when that broker accepts no messages of the topic now."""
    name = info.broker_of(queue)
    target = info.targets.get(name)
    if target is None:
        known = ", ".join(sorted(info.targets)) or "none"
        raise RouteError(
            queue.topic,
            f"broker {name} accepts no messages of topic {queue.topic} now (brokers that do: {known})",
        )
    return target


def _now() -> float:
    """Deadlines of calls use the event loop's time, which a test that moves the clock does not change."""
    return asyncio.get_running_loop().time()
