"""What a receipt handle allows, by remoting: acknowledge, change the invisible time, make a dead letter.

A receipt names its broker and everything that the broker needs, so any proxy can use it.
Source: ConsumerProcessor (RocketMQ 5.5.0).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from aerobee.broker.grpc.receipt_handle import Receipt
from aerobee.broker.grpc.renewals import GIVE_BACK_MS
from aerobee.errors import AerobeeError
from aerobee.proxy.cluster import ProxyCluster
from aerobee.remoting.body.pop_handle import real_topic
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, boolean_text

log = logging.getLogger(__name__)


class Handles:
    """All raise RemoteError for a refusal, TransportError and RouteError when the broker does not answer."""

    def __init__(self, cluster: ProxyCluster) -> None:
        self._cluster = cluster

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
            "originTopic": real_topic(topic, group, receipt.handle.retry),
            "unitMode": "false",
            "maxReconsumeTimes": "0",
            "bname": receipt.handle.broker_name,
        }
        await self._call(RequestCode.CONSUMER_SEND_MSG_BACK, fields, topic, receipt)
        try:
            await self.acknowledge(group, topic, receipt)
        except AerobeeError as error:
            # The dead letter is stored; a client repeats what is not OK, and each time would store another.
            log.info(
                "dead letter %s of %s was not acknowledged after %d tries: %s", receipt, group, tries, error
            )

    def give_back(self, group: str, topic: str, receipt: Receipt) -> None:
        """Have the message come back in GIVE_BACK_MS, in the background. Its number of attempts does not change."""

        async def change() -> None:
            try:
                await self.change(group, topic, receipt, GIVE_BACK_MS, suspend=True)
            except AerobeeError as error:
                log.info(
                    "message %s of %s comes back when its invisible time ends: %s", receipt, group, error
                )

        self._cluster.session.tasks.spawn(change(), "proxy-give-back")

    def _fields(self, group: str, topic: str, receipt: Receipt) -> dict[str, str]:
        handle = receipt.handle
        return {
            "consumerGroup": group,
            "topic": real_topic(topic, group, handle.retry),
            "queueId": str(handle.queue_id),
            "offset": str(handle.queue_offset),
            "extraInfo": str(handle),
            "bname": handle.broker_name,
        }

    async def _call(
        self, code: RequestCode, fields: dict[str, str], topic: str, receipt: Receipt
    ) -> RemotingCommand:
        await self._cluster.route(topic)
        return await self._cluster.call(receipt.handle.broker_name, topic, RemotingCommand(code, fields))
