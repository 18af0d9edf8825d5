"""Routes by topic: fetched once, refreshed every 30 s, and immediately when one proves stale.

Source: MQClientInstance.updateTopicRouteInfoFromNameServer. Users of routes register for changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aerobee.client.base.lost_peers import LostPeers
from aerobee.client.base.tasks import Tasks
from aerobee.client.base.topic_route import TopicRoute, parse_route
from aerobee.client.session.nameservers import Nameservers
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RouteError, TopicNotExist, UsageError, remote_error
from aerobee.message import RETRY_PREFIX, MessageQueue
from aerobee.remoting.body.route import BrokerData
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import MASTER_ID
from aerobee.shared_task import SharedTask

log = logging.getLogger(__name__)

Listener = Callable[[TopicRoute], None]
# Between two requests for the routes of subscribed topics that do not exist. A retry topic appears after the first
# heartbeat, or never (a broker that creates no groups): its route is requested every fifth time.
MISSING_S = 1.0
RETRY_TOPIC_EVERY = 5


class RouteCache:
    """The routes that one client uses."""

    def __init__(
        self,
        nameservers: Nameservers,
        *,
        clock: Clock,
        tasks: Tasks,
        refresh_s: float,
        request_timeout_s: float,
        peers: LostPeers,
    ) -> None:
        self._nameservers = nameservers
        self._clock = clock
        self._tasks = tasks
        self._refresh_s = refresh_s
        self._request_timeout_s = request_timeout_s
        self._peers = peers
        self._routes: dict[str, TopicRoute] = {}
        self._watched: dict[str, None] = {}  # topics that are refreshed, in the order of their registration
        self._subscribed: dict[
            str, None
        ] = {}  # topics whose route is requested every second while it is missing
        self._fetching: dict[str, SharedTask[TopicRoute]] = {}
        self._listeners: list[Listener] = []
        self._brokers: dict[str, BrokerData] = {}
        self._leaders: dict[MessageQueue, str] = {}  # of logical queues

    def on_change(self, listener: Listener) -> None:
        """Call `listener` with each route that is new or differs from the previous one."""
        self._listeners.append(listener)

    def watch(self, topics: Iterable[str]) -> None:
        """Refresh these topics periodically, even if they do not exist yet."""
        self._watched.update(dict.fromkeys(topics))

    def subscribe(self, topics: Iterable[str]) -> None:
        """As watch(), for a consumer's topics: the route of a missing topic is requested every second."""
        names = dict.fromkeys(topics)
        self._watched.update(names)
        self._subscribed.update(names)

    def unwatch(self, topic: str) -> None:
        self._watched.pop(topic, None)
        self._subscribed.pop(topic, None)
        self._routes.pop(topic, None)
        self._index_brokers()

    def cached(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    def brokers(self) -> Iterable[BrokerData]:
        """Every broker of a cached route."""
        return self._brokers.values()

    def leader_of(self, queue: MessageQueue) -> str:
        """The name of the broker that serves a queue; for a logical queue, its current leader."""
        return self._leaders.get(queue, queue.broker_name) if self._leaders else queue.broker_name

    def address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of one broker, None when no cached route contains it."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.broker_addrs.get(broker_id)

    def any_address_of(self, broker_name: str) -> str | None:
        """The master's address, else that of the lowest id."""
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.broker_addrs:
            return None
        return broker.broker_addrs[min(broker.broker_addrs)]

    async def get(self, topic: str) -> TopicRoute:
        """Return the cached route, or read it. Raises as refresh() does."""
        route = self._routes.get(topic)
        return route if route is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Read the route from a NameServer; concurrent callers share one request.

        Raises TopicNotExist when the nameserver knows no such topic, ConnectFailed when none answers, UsageError when
        the client is closed meanwhile.
        """
        fetching = self._fetching.get(topic)
        if fetching is None:
            task = self._tasks.spawn(self._fetch(topic), f"route-{topic}", awaited=True)
            task.add_done_callback(lambda _: self._fetching.pop(topic, None))
            fetching = self._fetching[topic] = SharedTask(task)
        try:
            return await fetching.outcome()
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if fetching.task.cancelled() and current is not None and not current.cancelling():
                raise UsageError("this client was closed while it fetched a route") from None
            raise

    async def _fetch(self, topic: str) -> TopicRoute:
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC.value, {"topic": topic})
        address, answer = await self._nameservers.invoke(request, timeout_s=self._request_timeout_s)
        if self._peers.lost:
            self._peers.answered(address)
        if answer.code != ResponseCode.SUCCESS:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST and self._routes.pop(topic, None) is not None:
                self._index_brokers()
            remark = answer.remark
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                remark = (
                    f"topic {topic} does not exist; `aerobee topic create {topic}` creates it. If it existed, its broker is "
                    "down: `aerobee doctor`"
                )
            raise remote_error(
                answer.code,
                remark,
                address=address,
                request="GET_ROUTEINFO_BY_TOPIC",
                opaque=answer.opaque,
            )
        if not answer.body:
            raise RouteError(topic, f"nameserver {address} answered with an empty route for topic {topic}")
        route = parse_route(topic, answer.body)
        self._watched[topic] = None
        before = self._routes.pop(topic, None)
        self._routes[topic] = route  # most recent last, see _index_brokers()
        if before != route:
            self._index_brokers()
            for listener in self._listeners:
                listener(route)
        else:
            self._brokers.update((broker.broker_name, broker) for broker in route.brokers)
        return route

    def topics_at(self, address: str) -> list[str]:
        """The topics whose cached routes contain a broker at this address."""
        return [
            topic
            for topic, route in self._routes.items()
            if any(address in broker.broker_addrs.values() for broker in route.brokers)
        ]

    def _index_brokers(self) -> None:
        # When several routes contain a broker, the route fetched last has its current address: after a
        # failover the other routes contain the old master until they are refreshed.
        self._brokers = {
            broker.broker_name: broker for route in self._routes.values() for broker in route.brokers
        }
        self._leaders = {queue: leader for route in self._routes.values() for queue, leader in route.logical}

    async def find_missing(self) -> None:
        """Request the missing routes of subscribed topics every second, until cancelled."""
        count = 0
        while True:
            await self._clock.sleep(MISSING_S)
            count += 1
            for topic in tuple(self._subscribed):
                if topic in self._routes or (topic.startswith(RETRY_PREFIX) and count % RETRY_TOPIC_EVERY):
                    continue
                try:
                    await self.refresh(topic)
                except TopicNotExist:
                    log.debug("topic %s does not exist yet", topic)
                except AerobeeError as error:
                    # keep_fresh() logs NameServers that do not answer.
                    log.debug("route of topic %s: %s", topic, error)
                    break

    async def keep_fresh(self) -> None:
        """Refresh all watched topics one after the other, until cancelled."""
        while True:
            await self._clock.sleep(self._refresh_s)
            for topic in tuple(self._watched):
                try:
                    await self.refresh(topic)
                except TopicNotExist:
                    log.debug("topic %s has no route yet", topic)
                except AerobeeError as error:
                    self._peers.trouble(log, error, "route of topic %s: %s", topic, error)
                    if not isinstance(error, RouteError):
                        break  # no NameServer answers: requests for the other topics would only wait, too
