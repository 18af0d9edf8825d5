"""A producer's request-reply calls: request and reply_to. Rules and pending requests are in request_reply.py."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from aerobee.client.base.config import ProducerConfig
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.results import SendResult
from aerobee.client.producer.message_group import Selector
from aerobee.client.producer.publish_info import PublishInfo, Target
from aerobee.client.producer.publish_info_table import PublishInfoTable, target_of
from aerobee.client.producer.request_reply import (
    PendingRequests,
    not_handed_over,
    reply_message,
    reply_topic,
    request_properties,
)
from aerobee.client.session.send_header import Ids, SendTemplate, decode_send_reply, properties_text
from aerobee.client.session.session import Session
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RemoteError, TransportError
from aerobee.message import Message, MessageQueue
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.connection import Connection

log = logging.getLogger(__name__)

SEND_REPLY = "SEND_REPLY_MESSAGE_V2"


class RequestReplyCalls:
    """Base of Producer: request-reply calls."""

    group: str
    config: ProducerConfig
    _session: Session
    _clock: Clock
    _loop: asyncio.AbstractEventLoop
    _ids: Ids
    _routes: PublishInfoTable
    _publish: dict[str, PublishInfo]
    _requests: PendingRequests
    _request_routes: dict[str, PublishInfo]  # topics whose brokers know this client as a requester
    _closing: bool

    @property
    @abstractmethod
    def client_id(self) -> str: ...

    @abstractmethod
    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        message_group: object = None,
        timeout_s: float | None = None,
    ) -> SendResult: ...

    @abstractmethod
    def _refuse_closed(self) -> None: ...

    @abstractmethod
    def _prepare(self, message: Message) -> tuple[bytes, int]: ...

    @abstractmethod
    async def _connection(
        self, target: Target, deadline: float, request: str, *, is_only_try: bool
    ) -> Connection: ...

    async def request(
        self,
        message: Message,
        *,
        timeout_s: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        message_group: object = None,
    ) -> ReceivedMessage:
        """Send a message and wait for the reply that a consumer of its topic sends with reply_to().

        Raises NoReply when none came in `timeout_s`, which counts the send; else as send() does.
        """
        if self._closing or not self._session.is_open:
            self._refuse_closed()
        deadline = self._loop.time() + timeout_s
        message_id = "that was not sent"
        try:
            async with asyncio.timeout_at(deadline):
                info = self._publish.get(message.topic) or await self._routes.info(message.topic, deadline)
                if self._request_routes.get(message.topic) is not info:
                    await self._become_known(info, message.topic)
                correlation_id, reply = await self._requests.open()
                try:
                    properties = request_properties(correlation_id, self.client_id, timeout_s)
                    asked = replace(message, properties={**message.properties, **properties})
                    result = await self.send(
                        asked,
                        queue=queue,
                        selector=selector,
                        message_group=message_group,
                        timeout_s=deadline - self._loop.time(),
                    )
                    message_id = result.message_id
                    return await reply
                finally:
                    self._requests.close(correlation_id)
        except TimeoutError as error:
            raise self._requests.timed_out(message_id, message.topic, timeout_s) from error

    async def _become_known(self, info: PublishInfo, topic: str) -> None:
        """Send a heartbeat to each broker at which a reply can arrive: brokers of the topic, and of the reply topic."""
        addresses = {target.address for target in info.targets.values()}
        route = self._session.routes.cached(topic)
        for cluster in {broker.cluster for broker in route.brokers} if route is not None else ():
            try:
                replies = await self._session.routes.get(reply_topic(cluster))
            except AerobeeError as error:
                log.info("the brokers of the reply topic of cluster %s are unknown: %s", cluster, error)
                continue
            addresses.update(filter(None, (broker.address_of_master() for broker in replies.brokers)))
        await asyncio.gather(*(self._session.heartbeat_to(address) for address in addresses))
        self._request_routes[topic] = info

    async def reply_to(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Reply to a message that was sent with request(), by this client or by any RocketMQ client.

        `properties` are user properties of the reply.

        The reply goes to the broker from which the request came, then to others of its cluster. Raises UsageError for a
        message that is not a request, SendFailed when no broker could deliver the reply because the requester is
        disconnected.
        """
        if self._closing or not self._session.is_open:
            self._refuse_closed()
        message = reply_message(request, body, tag, properties)
        deadline = self._loop.time() + (timeout_s or self.config.send_timeout_s)
        payload, sys_flag = self._prepare(message)
        unique_id = self._ids.next_id(self._clock.now_ms())
        text = properties_text(message, unique_id)
        info = self._publish.get(message.topic) or await self._routes.info(message.topic, deadline)
        first = request.queue.broker_name
        queues = {queue.broker_name: queue for queue in info.queues}
        attempts: list[tuple[str, BaseException]] = []
        names = sorted(queues, key=lambda name: name != first)
        for name in names:
            target, queue = target_of(info, queues[name]), queues[name]
            template = SendTemplate(
                code=RequestCode.SEND_REPLY_MESSAGE_V2.value,
                group=self.group,
                queue=queue,
                default_topic=self.config.default_topic,
                default_queue_count=self.config.default_topic_queue_count,
            )
            try:
                connection = await self._connection(
                    target, deadline, SEND_REPLY, is_only_try=name == names[-1]
                )
                opaque = connection.next_opaque()
                frame = template.frame(
                    opaque=opaque,
                    queue_id=queue.queue_id,
                    sys_flag=sys_flag,
                    born_timestamp_ms=self._clock.now_ms(),
                    flag=message.flag,
                    properties=text,
                    body=payload,
                )
                answer = await connection.call(frame, opaque, deadline - self._loop.time(), SEND_REPLY)
                return decode_send_reply(answer, queue, unique_id, target.address)
            except (RemoteError, TransportError) as error:
                attempts.append((f"{name} at {target.address}", error))
        raise not_handed_over(request, attempts) from attempts[-1][1]
