"""Requests by remoting for a receipt handle: acknowledge, change the invisible time, move to the dead letters.

A receipt names its broker and everything that the broker needs, so any proxy can use it.
Source: ConsumerProcessor (RocketMQ 5.5.0).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from aerobee.broker.grpc.receipt_handle import Receipt
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.grpc.renewals import GIVE_BACK_MS
from aerobee.errors import AerobeeError, MalformedRecord, RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_queue, lite_topic_fault, split_lite_queue
from aerobee.message import Record, decode_record
from aerobee.property_names import LITE_TOPIC
from aerobee.proxy.background import Background
from aerobee.proxy.cluster import ProxyCluster
from aerobee.remoting.body.pop_handle import real_topic
from aerobee.remoting.body.subscription import TYPE_TAG
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text

log = logging.getLogger(__name__)

# A broker's refusals of a receipt that stays invalid; after any other one it may be used later.
INVALID_RECEIPT = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)


class Handles:
    """`topic` is where a receipt is valid: the topic, or a lite topic's LMQ.

    All raise RemoteError for a refusal, TransportError and RouteError when the broker does not answer, RpcRefused when no broker has the
    topic.
    """

    def __init__(self, cluster: ProxyCluster) -> None:
        self._cluster = cluster
        self._returns = Background(cluster.session.tasks, "proxy-give-back")

    @property
    def waiting_count(self) -> int:
        """Messages to give back that wait for others."""
        return len(self._returns)

    async def acknowledge(self, group: str, topic: str, receipt: Receipt) -> None:
        """The group has consumed the message."""
        await self._call(RequestCode.ACK_MESSAGE, self._fields(group, topic, receipt), topic, receipt)

    async def change(
        self, group: str, topic: str, receipt: Receipt, invisible_ms: int, *, suspend: bool = False
    ) -> Receipt:
        """Have the message come back in `invisible_ms`; returns its new receipt."""
        fields = self._fields(group, topic, receipt)
        fields |= {"invisibleTime": str(invisible_ms), "suspend": boolean_text(suspend)}
        answer = await self._call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields, topic, receipt)
        handle = receipt.handle
        changed = replace(
            handle,
            start_offset=handle.start_offset if handle.is_ordered else handle.queue_offset,
            pop_time=answer.integer("popTime"),
            invisible_ms=answer.integer("invisibleTime"),
            revive_queue_id=answer.integer("reviveQid"),
        )
        return Receipt(changed, receipt.physical_offset)

    async def bury(
        self, group: str, topic: str, receipt: Receipt, tries: int, *, message_id: str = ""
    ) -> None:
        """Make the message a dead letter, then acknowledge it. `receipt` has a physical offset."""
        fields = {
            "offset": str(receipt.physical_offset),
            "group": group,
            "delayLevel": "-1",
            "originMsgId": message_id,
            "originTopic": real_topic(_parent(topic), group, receipt.handle.retry),
            "unitMode": "false",
            "maxReconsumeTimes": "0",
            "bname": receipt.handle.broker_name,
        }
        await self._call(RequestCode.CONSUMER_SEND_MSG_BACK, fields, topic, receipt)
        try:
            await self.acknowledge(group, topic, receipt)
        except (RpcRefused, AerobeeError) as error:
            # The dead letter is stored; a client repeats what is not OK, and each time would store another.
            log.info(
                "dead letter %s of %s was not acknowledged after %d tries: %s", receipt, group, tries, error
            )

    def give_back(self, group: str, topic: str, receipt: Receipt) -> None:
        """Have the message come back in GIVE_BACK_MS, in the background. Its number of attempts does not change."""

        async def come_back() -> None:
            try:
                await self.change(group, topic, receipt, GIVE_BACK_MS, suspend=True)
            except (RpcRefused, AerobeeError) as error:
                log.info(
                    "message %s of %s comes back when its invisible time ends: %s", receipt, group, error
                )

        if not self._returns.add(come_back):
            log.info(
                "message %s of %s comes back when its invisible time ends: too many others do now",
                receipt,
                group,
            )

    async def stored_topic(self, group: str, topic: str, receipt: Receipt, lite_topic: str) -> str:
        """Where a receipt of a client's request is valid. Not every client names the lite topic in every request (Java 5.2.0): then its
        record does. Raises RpcRefused for a lite group's receipt of no lite topic.
        """
        if not await self._cluster.is_lite(group):
            return topic
        if not lite_topic and receipt.physical_offset is not None:
            record = await self._record(topic, receipt)
            lite_topic = record.properties.get(LITE_TOPIC, "") if record.topic == topic else ""
        if lite_topic_fault(lite_topic):
            raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, "the receipt handle is of no lite topic")
        return lite_queue(topic, lite_topic)

    async def check_record(self, group: str, topic: str, receipt: Receipt) -> None:
        """Raise RpcRefused unless the receipt's physical offset is that of the message at the queue offset which it names. `topic` is
        where the receipt is valid.

        A client writes both, and the proxy's own user may read every record. The queue says where its message lies: a record that is read
        at the physical offset alone may be forged, inside the body of another message.
        """
        handle = receipt.handle
        stored = topic if split_lite_queue(topic) else real_topic(topic, group, handle.retry)
        fields = {
            "consumerGroup": group,  # which the proxy's user may consume with
            "topic": stored,
            "queueId": str(handle.queue_id),
            "queueOffset": str(handle.queue_offset),
            "maxMsgNums": "1",
            "sysFlag": "4",  # the request contains the subscription, and does not wait
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": TYPE_TAG,
            "bname": handle.broker_name,
        }
        try:
            answer = await self._call(RequestCode.PULL_MESSAGE, fields, topic, receipt)
            record = decode_record(answer.body, check_crc=False)
        except (RemoteError, MalformedRecord) as error:
            text = f"the broker has no message at the receipt handle's queue offset: {error}"
            raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, text) from error
        if record.physical_offset != receipt.physical_offset:
            text = f"the receipt handle is of no message of topic {_parent(topic)}"
            raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, text)

    async def _record(self, topic: str, receipt: Receipt) -> Record:
        fields = {"topic": topic, "offset": str(receipt.physical_offset), "bname": receipt.handle.broker_name}
        try:
            answer = await self._call(RequestCode.VIEW_MESSAGE_BY_ID, fields, topic, receipt)
            return decode_record(answer.body, check_crc=False)
        except (RemoteError, MalformedRecord) as error:
            text = f"the broker has no message at the receipt handle's offset: {error}"
            raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, text) from error

    def _fields(self, group: str, topic: str, receipt: Receipt) -> dict[str, str]:
        handle, lite = receipt.handle, split_lite_queue(topic)
        fields = {
            "consumerGroup": group,
            "topic": real_topic(_parent(topic), group, handle.retry),
            "queueId": str(handle.queue_id),
            "offset": str(handle.queue_offset),
            "extraInfo": str(handle),
            "bname": handle.broker_name,
        }
        return fields if lite is None else {**fields, "liteTopic": lite[1]}

    async def _call(
        self, code: RequestCode, fields: dict[str, str], topic: str, receipt: Receipt
    ) -> RemotingCommand:
        topic = _parent(topic)
        await self._cluster.route(topic)
        return await self._cluster.call(receipt.handle.broker_name, topic, RemotingCommand(code, fields))


def _parent(topic: str) -> str:
    lite = split_lite_queue(topic)
    return topic if lite is None else lite[0]
