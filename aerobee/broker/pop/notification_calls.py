"""NOTIFICATION 200054 (waits until a group has a message to pop) and POLLING_INFO 200055 (number of pending requests)
by remoting.

Source: NotificationProcessor, PollingInfoProcessor (RocketMQ). A proxy asks these on behalf of its clients. The
wait counts from the arrival at the broker: bornTime, which some leave out and which a wrong clock makes useless, is not read.
"""

from __future__ import annotations

from aerobee.broker.admission.held_request import HeldRequest
from aerobee.broker.pop.notification_service import Notice, NotificationRequest, NotificationService
from aerobee.broker.state.refusal import Refused, remote_refusal
from aerobee.errors import RemoteError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.peer import Handler, Peer, Reply


class NotificationCalls:
    """Handlers of both requests: decode them, and encode the outcomes of NotificationService."""

    def __init__(self, service: NotificationService) -> None:
        self._service = service

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.NOTIFICATION: self.notification, RequestCode.POLLING_INFO: self.polling_info}

    def notification(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Answer hasMsg immediately when there is a message, else when one comes or pollTime has passed."""
        asked = NotificationRequest(
            topic=request.text("topic"),
            group=request.text("consumerGroup"),
            queue_id=request.integer("queueId"),
            poll_ms=request.integer("pollTime"),
            ordered=request.boolean("order", False),
            attempt_id=request.text("attemptId", ""),
            may_wait=not request.is_oneway,
        )
        try:
            notice = self._service.notify(asked, _Call(peer, request))
        except (Refused, RemoteError) as error:
            return _refusal(request, error)
        return None if notice is None else _reply(request, notice)

    def polling_info(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Number of the group's pending pops for the topic, or for one of its queues."""
        topic, group = request.text("topic"), request.text("consumerGroup")
        queue_id = request.integer("queueId", -1)
        try:
            count = self._service.waiting_pops(group, topic, queue_id)
        except (Refused, RemoteError) as error:
            return _refusal(request, error)
        return request.reply(ext={"pollingNum": str(count)})


class _Call(HeldRequest):
    """A pending NOTIFICATION request."""

    __slots__ = ()

    def deliver(self, notice: Notice) -> None:
        """As NotificationCall."""
        self.caller.send(_reply(self.request, notice))


def _reply(request: RemotingCommand, notice: Notice) -> RemotingCommand:
    return request.reply(
        ext={"hasMsg": boolean_text(notice.has_message), "pollingFull": boolean_text(notice.is_full)}
    )


def _refusal(request: RemotingCommand, error: Refused | RemoteError) -> RemotingCommand:
    refusal = remote_refusal(error)
    return request.reply(refusal.code, remark=refusal.remark, ext={})
