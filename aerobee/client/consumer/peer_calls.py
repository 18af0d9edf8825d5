"""Requests of a broker to a consumer: members changed, reset offsets, status, running info, consume one message.

Source: ClientRemotingProcessor. Codes 40, 220, 221, 307, 309.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from aerobee.client.base.handler_errors import is_of_handler
from aerobee.client.base.received import ReceivedMessage, decode_stored_messages
from aerobee.client.base.tasks import Tasks
from aerobee.client.consumer.queue_pull import QueuePull
from aerobee.client.consumer.subscription import Subscription
from aerobee.client.session.session import Session
from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body.consumer_running_info import ConsumeStatus, ProcessQueueInfo
from aerobee.remoting.body.reset_offset import ResetOffsetBody
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCalls:
    """The consumer as these requests use it."""

    session: Session
    group: str
    consume_type: str
    pulls: Mapping[MessageQueue, QueuePull]
    subscriptions: Mapping[str, Subscription]
    rebalance: Callable[[], None]
    reset: Callable[[Mapping[MessageQueue, int]], Coroutine[Any, Any, None]]
    consume: Callable[[ReceivedMessage], Coroutine[Any, Any, None]] | None
    settings: Callable[[], Mapping[str, str]]
    locked_at_ms: Callable[[MessageQueue], int] | None = None  # only of an ordered consumer; 0: not locked

    def install(self) -> None:
        """Answer these requests on every connection of the session."""
        self.session.handlers.update(
            {
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED.value: self._members_changed,
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET.value: self._reset_offsets,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT.value: self._status,
                RequestCode.GET_CONSUMER_RUNNING_INFO.value: self._running_info,
                RequestCode.CONSUME_MESSAGE_DIRECTLY.value: self._consume_directly,
            }
        )

    @property
    def _tasks(self) -> Tasks:
        return self.session.tasks

    def _members_changed(self, _peer: Peer, request: RemotingCommand) -> None:
        if request.text("consumerGroup") == self.group:
            self.rebalance()

    def _reset_offsets(self, _peer: Peer, request: RemotingCommand) -> RemotingCommand | None:
        topic, group = request.text("topic"), request.text("group")
        if group == self.group and topic in self.subscriptions:
            self._tasks.spawn(
                self.reset(ResetOffsetBody.decode(request.body).offset_table), "consumer-reset-offsets"
            )
        return None if request.is_oneway else request.reply()

    def _status(self, _peer: Peer, request: RemotingCommand) -> RemotingCommand:
        topic = request.text("topic")
        table = {
            queue: pull.process.commit_offset for queue, pull in self.pulls.items() if queue.topic == topic
        }
        return request.reply(body=fastjson.dumps({"consumerTable": {}, "messageQueueTable": table}))

    def _running_info(self, _peer: Peer, request: RemotingCommand) -> RemotingCommand:
        if request.text("consumerGroup") != self.group:
            return request.reply(
                ResponseCode.SYSTEM_ERROR.value,
                remark=f"this client runs no consumer of group {request.text('consumerGroup')}",
            )
        return request.reply(body=fastjson.dumps(self.running_info()))

    def running_info(self) -> dict[str, Any]:
        """ConsumerRunningInfo. Times in ms, sizes in MiB, as in RocketMQ."""
        properties = {
            "PROP_NAMESERVER_ADDR": ";".join(self.session.nameservers.addresses) + ";",
            "PROP_CONSUME_TYPE": self.consume_type,
            "PROP_CLIENT_VERSION": "V5_5_0",
            "PROP_CONSUMEORDERLY": "false",
            **self.settings(),
        }
        return {
            "mqPopTable": {},
            "mqTable": {
                queue: _queue_info(pull, 0 if self.locked_at_ms is None else self.locked_at_ms(queue))
                for queue, pull in self.pulls.items()
            },
            "properties": properties,
            "statusTable": {topic: ConsumeStatus().to_dict() for topic in self.subscriptions},
            "subscriptionSet": [
                subscription.to_data().to_dict() for subscription in self.subscriptions.values()
            ],
            "userConsumerInfo": {},
        }

    async def _consume_directly(self, _peer: Peer, request: RemotingCommand) -> RemotingCommand:
        consume = self.consume
        if consume is None or request.text("consumerGroup") != self.group:
            return request.reply(
                ResponseCode.SYSTEM_ERROR.value, remark="this client has no handler to consume a message with"
            )
        messages = decode_stored_messages(request.body, request.text("brokerName", ""))
        if len(messages) != 1:
            raise MalformedFrame(f"CONSUME_MESSAGE_DIRECTLY brought {len(messages)} records, not one")
        began = self.session.clock.monotonic()
        result: dict[str, Any] = {"autoCommit": True, "consumeResult": "CR_SUCCESS"}
        result["order"] = self.locked_at_ms is not None
        try:
            await consume(messages[0])
        except BaseException as error:
            # Boundary to user code: the requester receives the exception.
            if not is_of_handler(error):
                raise
            log.info("direct consumption of %s failed", messages[0], exc_info=error)
            result["consumeResult"] = "CR_THROW_EXCEPTION"
            result["remark"] = "".join(traceback.format_exception_only(error)).strip()
        result["spentTimeMills"] = round((self.session.clock.monotonic() - began) * 1000)
        return request.reply(body=fastjson.dumps(result))


def _queue_info(pull: QueuePull, locked_at_ms: int) -> dict[str, Any]:
    process = pull.process
    return ProcessQueueInfo(
        commit_offset=process.commit_offset,
        cached_msg_min_offset=process.commit_offset if process.count else 0,
        cached_msg_max_offset=max(process.newest_offset, 0),
        cached_msg_count=process.count,
        cached_msg_size_in_mib=process.cached_bytes >> 20,
        locked=locked_at_ms > 0,
        last_lock_timestamp=locked_at_ms,
        dropped=process.dropped,
        last_pull_timestamp=pull.last_pull_ms,
        last_consume_timestamp=pull.last_consume_ms,
    ).to_dict()
