"""LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42: a consumer takes queues for itself and gives them back.

Source: LockBatchRequestBody, LockBatchResponseBody, AdminBrokerProcessor (RocketMQ). Broker names in the queues are
whatever the client sent and come back as sent. `onlyThisBroker` stops RocketMQ's forwarding between replicas, which
needs lockInStrictMode; there is none here.
"""

from __future__ import annotations

from aerobee.broker.lock_table import LockTable
from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import queue_to_dict, queues
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection, Handler


class LockCalls:
    """Answers 41 and 42."""

    def __init__(self, *, locks: LockTable) -> None:
        self._locks = locks

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Body {consumerGroup, clientId, mqSet}; the reply's lockOKMQSet names the queues that were granted."""
        group, client_id, wanted = _parse(request, "a lock request")
        granted = self._locks.lock(group, client_id, wanted)
        return request.reply(
            body=fastjson.dumps({"lockOKMQSet": [queue_to_dict(queue) for queue in granted]})
        )

    def unlock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        group, client_id, given_back = _parse(request, "an unlock request")
        self._locks.unlock(group, client_id, given_back)
        return request.reply()


def _parse(request: RemotingCommand, what: str) -> tuple[str, str, tuple[MessageQueue, ...]]:
    fields = fastjson.loads_object(request.body, what)
    group = json_fields.text(fields, "consumerGroup")
    client_id = json_fields.text(fields, "clientId")
    if not group or not client_id:
        raise MalformedFrame(f"{what} needs consumerGroup and clientId, it has {group!r} and {client_id!r}")
    return group, client_id, queues(fields, "mqSet")
