"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue by remoting, at the broker that the receipt names.

Source: AckMessageActivity, ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity (RocketMQ 5.5.0). Difference: a receipt handle
that is none, or no longer good, is answered with INVALID_RECEIPT_HANDLE, for clients repeat what is refused with another code for ever.
"""

from __future__ import annotations

import asyncio

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.ack_message import ACKS_MAX
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.receipt_handle import CHANGED_MS_MAX, Receipt, check_in_time, parse_receipt
from aerobee.broker.grpc.refusal import RpcRefused, status, status_of
from aerobee.broker.grpc.renewal_table import Renewed
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.grpc.times import duration_ms
from aerobee.errors import AerobeeError, RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.handles import INVALID_RECEIPT, Handles
from aerobee.proxy.renewals import ProxyRenewals
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand


class ProxyAcks:
    """Serves the three RPCs."""

    def __init__(
        self, cluster: ProxyCluster, handles: Handles, renewals: ProxyRenewals, access: RpcAccess
    ) -> None:
        self._cluster = cluster
        self._handles = handles
        self._renewals = renewals
        self._access = access

    async def acknowledge(self, context: RpcContext, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        """The group has consumed the messages. Each has an entry in the answer, in their order. Raises RpcRefused."""
        topic, group = self._begin(context, request.topic, request.group, RequestCode.ACK_MESSAGE)
        if not request.entries:
            raise RpcRefused(pb.BAD_REQUEST, "the request names no message")
        if len(request.entries) > ACKS_MAX:
            text = f"the request has {len(request.entries)} entries, at most {ACKS_MAX} are allowed"
            raise RpcRefused(pb.BAD_REQUEST, text)
        found = await asyncio.gather(
            *(
                self._acknowledge(topic, group, entry.receipt_handle, entry.lite_topic)
                for entry in request.entries
            )
        )
        entries = [
            pb.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each
            )
            for entry, each in zip(request.entries, found, strict=True)
        ]
        codes = {entry.status.code for entry in entries}
        whole = entries[0].status if len(codes) == 1 else status(pb.MULTIPLE_RESULTS, "multiple results")
        return pb.AckMessageResponse(status=whole, entries=entries)

    async def _acknowledge(self, topic: str, group: str, text: str, lite_topic: str) -> pb.Status:
        try:
            receipt, renewed = self._receipt(group, text)
            topic = await self._handles.stored_topic(group, topic, receipt, lite_topic)
            check_in_time(receipt.handle, self._cluster.clock.now_ms())
            await self._handles.acknowledge(group, topic, receipt)
        except (RpcRefused, AerobeeError) as error:
            return _status_of(error)
        if renewed is not None:
            self._renewals.table.remove(renewed)
        return status()

    async def change(
        self, context: RpcContext, request: pb.ChangeInvisibleDurationRequest
    ) -> pb.ChangeInvisibleDurationResponse:
        """Have a message come back at another time. The answer has a handle that can be used, also when it is refused."""
        text = request.receipt_handle
        try:
            topic, group = self._begin(
                context, request.topic, request.group, RequestCode.CHANGE_MESSAGE_INVISIBLETIME
            )
            invisible_ms = duration_ms(request.invisible_duration)
            if not 0 <= invisible_ms <= CHANGED_MS_MAX:
                limit = "small. min is 0" if invisible_ms < 0 else f"large. max is {CHANGED_MS_MAX}"
                raise RpcRefused(pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too {limit}")
            receipt, renewed = self._receipt(group, text)
            topic = await self._handles.stored_topic(group, topic, receipt, request.lite_topic)
            check_in_time(receipt.handle, self._cluster.clock.now_ms())
            changed = await self._handles.change(group, topic, receipt, invisible_ms, suspend=request.suspend)
        except (RpcRefused, AerobeeError) as error:
            return pb.ChangeInvisibleDurationResponse(status=_status_of(error), receipt_handle=text)
        if renewed is not None:
            self._renewals.table.remove(renewed)
        return pb.ChangeInvisibleDurationResponse(status=status(), receipt_handle=str(changed))

    async def forward(
        self, context: RpcContext, request: pb.ForwardMessageToDeadLetterQueueRequest
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Store the message as a dead letter of the group, then acknowledge it. Raises RpcRefused, AerobeeError."""
        topic, group = self._begin(context, request.topic, request.group, RequestCode.ACK_MESSAGE)
        receipt, renewed = self._receipt(group, request.receipt_handle)
        if receipt.physical_offset is None:
            raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        topic = await self._handles.stored_topic(group, topic, receipt, request.lite_topic)
        if self._access.is_closed and renewed is None:
            await self._handles.check_record(group, topic, receipt)
        await self._handles.bury(
            group, topic, receipt, request.delivery_attempt, message_id=request.message_id
        )
        if renewed is not None:
            self._renewals.table.remove(renewed)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=status())

    def _begin(
        self, context: RpcContext, topic: pb.Resource, group: pb.Resource, code: RequestCode
    ) -> tuple[str, str]:
        """(topic, group), checked. Raises RpcRefused."""
        names = topic_name(topic), group_name(group)
        asked = RemotingCommand(code, {"topic": names[0], "consumerGroup": names[1]})
        self._access.check(context.peer, context.metadata, asked)
        self._renewals.seen(context.client)
        return names

    def _receipt(self, group: str, text: str) -> tuple[Receipt, Renewed | None]:
        """The receipt in force of a client's receipt handle. Raises RpcRefused."""
        renewed = self._renewals.table.find(group, text)
        if renewed is not None:
            return renewed.receipt, renewed
        return parse_receipt(text, broker_name=None), None


def _status_of(error: Exception) -> pb.Status:
    if isinstance(error, RemoteError) and error.code in INVALID_RECEIPT:
        return status(pb.INVALID_RECEIPT_HANDLE, error.remark)
    return status_of(error)
