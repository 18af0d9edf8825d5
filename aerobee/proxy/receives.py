"""ReceiveMessage by remoting: a pop at the broker that the queue in the request names, else at the topic's brokers in turn.

When its client has left, a pending pop is withdrawn, so that another client gets the message; RocketMQ's brokers do not know that
request. Messages that come nevertheless are made visible again.
Source: ReceiveMessageActivity, ConsumerProcessor (RocketMQ 5.5.0).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass, replace

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.message_form import delivered_message
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.receipt_handle import Receipt
from aerobee.broker.grpc.receive_message import (
    ATTEMPT_ID_CHARS_MAX,
    asked_filter,
    invisible_ms,
    poll_ms,
    undamaged_records,
    wanted_tags,
)
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.rpc import ResponseStream, RpcContext
from aerobee.broker.grpc.times import set_ms
from aerobee.broker.lite.lite_group import lite_group
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.client.consumer.pop_calls import ANSWER_MARGIN_S, NOTHING
from aerobee.client.consumer.popped import decode_lite_popped, decode_popped
from aerobee.errors import AerobeeError, RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.message import Record
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.handles import Handles
from aerobee.proxy.lite import broker_client_id
from aerobee.proxy.renewals import ProxyRenewals
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.protocol import ANY_QUEUE, POP_COUNT_MAX, POP_ID_FIELD

log = logging.getLogger(__name__)

INIT_FROM_MAX = "1"


@dataclass(frozen=True, slots=True)
class Asked:
    """One pop: what the client wants, of which broker."""

    topic: str
    group: str
    broker_name: str
    code: RequestCode
    fields: dict[str, str]
    wait_ms: int
    ordered: bool
    tries_max: int
    tags: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Popped:
    """A message for the client. `topic` is where its receipt is valid: the subscribed topic, or a lite topic's LMQ."""

    topic: str
    receipt: Receipt
    record: Record
    message: pb.Message


class ProxyReceives:
    """Serves ReceiveMessage."""

    def __init__(
        self, cluster: ProxyCluster, handles: Handles, renewals: ProxyRenewals, access: RpcAccess
    ) -> None:
        self._cluster = cluster
        self._handles = handles
        self._renewals = renewals
        self._access = access
        self._turn = 0
        self._pop_ids = itertools.count(1)
        self._cannot_withdraw: set[str] = set()  # names of brokers

    async def receive(
        self, context: RpcContext, request: pb.ReceiveMessageRequest, stream: ResponseStream
    ) -> None:
        """Pop, and send what came. Raises RpcRefused, AerobeeError."""
        asked = await self._asked(context, request)
        self._renewals.seen(context.client)
        pop = self._cluster.session.tasks.spawn(self._pop(asked), "proxy-pop", awaited=True)
        try:
            found = await asyncio.shield(pop)
        except asyncio.CancelledError:
            pop.add_done_callback(lambda done: self._unwanted(asked, done))
            if not pop.done():
                self._cluster.session.tasks.spawn(self._withdraw(asked), "proxy-withdraw")
            raise
        try:
            self._check_access(
                context, asked.topic, asked.group
            )  # the user may have lost the permission while the pop waited
        except RpcRefused:
            self._unwanted(asked, pop)
            raise
        kept = await self._kept(asked, found)
        if not kept:
            await stream.send(
                pb.ReceiveMessageResponse(status=status(pb.MESSAGE_NOT_FOUND, "no new message"))
            )
        else:
            self._answer(context, asked, kept, stream, renews=request.auto_renew)
        last = pb.ReceiveMessageResponse()
        set_ms(last.delivery_timestamp, self._cluster.clock.now_ms())
        stream.push(last)

    def _answer(
        self, context: RpcContext, asked: Asked, kept: list[Popped], stream: ResponseStream, *, renews: bool
    ) -> None:
        is_sent = False

        def ended(_: object) -> None:
            for popped in kept:
                if is_sent and not stream.is_cut_off:
                    if renews:
                        self._renewals.add(
                            asked.group, context.client, context.peer.address, popped.topic, popped.receipt
                        )
                else:
                    self._handles.give_back(asked.group, popped.topic, popped.receipt)

        context.peer.on_close(ended)
        if stream.is_over:
            return
        is_sent = True
        stream.push(pb.ReceiveMessageResponse(status=status()))
        for popped in kept:
            stream.push(pb.ReceiveMessageResponse(message=popped.message))

    def _check_access(self, context: RpcContext, topic: str, group: str) -> None:
        asked = RemotingCommand(RequestCode.POP_MESSAGE, {"topic": topic, "consumerGroup": group})
        self._access.check(context.peer, context.metadata, asked)

    async def _asked(self, context: RpcContext, request: pb.ReceiveMessageRequest) -> Asked:
        topic, group = topic_name(request.message_queue.topic), group_name(request.group)
        self._check_access(context, topic, group)
        if len(request.attempt_id) > ATTEMPT_ID_CHARS_MAX:
            text = f"attempt_id has {len(request.attempt_id)} characters, at most {ATTEMPT_ID_CHARS_MAX} are allowed"
            raise RpcRefused(pb.BAD_REQUEST, text)
        hidden_ms = invisible_ms(request)
        expression_type, expression = asked_filter(request.filter_expression)
        brokers = list(
            dict.fromkeys(each.broker_name for each in subscribe_queues(await self._cluster.route(topic)))
        )
        if not brokers:
            raise RpcRefused(pb.FORBIDDEN, "no readable queue")
        named = request.message_queue.broker.name
        if named not in brokers:
            self._turn = (self._turn + 1) % len(brokers)
            named = brokers[self._turn]
        config = await self._cluster.group(group)
        wait_ms = poll_ms(context, request, self._cluster.clock.monotonic())
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "invisibleTime": str(hidden_ms),
            "pollTime": str(wait_ms),
            "bornTime": str(self._cluster.clock.now_ms()),
            "bname": named,
            POP_ID_FIELD: str(next(self._pop_ids)),
        }
        if request.attempt_id:
            fields["attemptId"] = request.attempt_id
        count, is_lite = str(min(max(1, request.batch_size), POP_COUNT_MAX)), lite_group(config) is not None
        if is_lite:
            fields |= {"clientId": broker_client_id(context.client), "maxMsgNum": count}
        else:
            fields |= {
                "queueId": str(ANY_QUEUE),
                "maxMsgNums": count,
                "initMode": INIT_FROM_MAX,
                "expType": expression_type,
                "exp": expression,
                "order": boolean_text(config.consume_message_orderly),
            }
        return Asked(
            topic,
            group,
            named,
            RequestCode.POP_LITE_MESSAGE if is_lite else RequestCode.POP_MESSAGE,
            fields,
            wait_ms,
            ordered=is_lite or config.consume_message_orderly,
            tries_max=config.retry_max_times,
            tags=None if is_lite else wanted_tags(request.filter_expression),
        )

    async def _withdraw(self, asked: Asked) -> None:
        """Have the broker answer a pop for which no client waits any more, if it can."""
        if asked.broker_name in self._cannot_withdraw:
            return
        names = ("consumerGroup", "topic", POP_ID_FIELD)
        request = RemotingCommand(
            RequestCode.AEROBEE_WITHDRAW_POP, {name: asked.fields[name] for name in names}
        )
        session = self._cluster.session
        try:
            address = await session.broker_address(asked.broker_name, asked.topic)
            answer = await session.call(address, request, timeout_s=ANSWER_MARGIN_S)
        except AerobeeError as error:
            log.info("a pop of %s at %s was not withdrawn: %s", asked.group, asked.broker_name, error)
            return
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._cannot_withdraw.add(asked.broker_name)

    async def _pop(self, asked: Asked) -> list[Popped]:
        session = self._cluster.session
        address = await session.broker_address(asked.broker_name, asked.topic)
        request = RemotingCommand(asked.code, dict(asked.fields))
        answer = await session.call(address, request, timeout_s=asked.wait_ms / 1000 + ANSWER_MARGIN_S)
        if answer.code in NOTHING:
            return []
        if answer.code:
            raise RemoteError(answer.code, answer.remark or "")
        is_lite = asked.code is RequestCode.POP_LITE_MESSAGE
        popped = (
            decode_lite_popped(answer, asked.topic, asked.broker_name)
            if is_lite
            else decode_popped(answer, asked.topic, asked.group, asked.broker_name)
        )
        found = []
        for each, record in zip(popped, undamaged_records(answer.body), strict=True):
            if record is None:
                continue
            receipt = Receipt(each.handle, record.physical_offset)
            if asked.ordered:
                record = replace(record, reconsume_times=each.times_before)
            stored = asked.topic
            if is_lite:
                stored = each.pop_queue.topic
                record = replace(record, queue_id=0, queue_offset=each.queue_offset)
            message = delivered_message(record, topic=asked.topic, receipt_handle=str(receipt))
            found.append(Popped(stored, receipt, record, message))
        return found

    async def _kept(self, asked: Asked, found: list[Popped]) -> list[Popped]:
        """Without those that only have the hash of a wanted tag, and those with too many attempts, which become dead letters."""
        kept = []
        for popped in found:
            try:
                if asked.tags is not None and popped.record.tag not in asked.tags:
                    await self._handles.acknowledge(asked.group, asked.topic, popped.receipt)
                elif not asked.ordered and 0 <= asked.tries_max < popped.record.reconsume_times:
                    await self._handles.bury(
                        asked.group, asked.topic, popped.receipt, popped.record.reconsume_times
                    )
                else:
                    kept.append(popped)
            except (RpcRefused, AerobeeError) as error:
                log.info("message %s of %s: %s", popped.receipt, asked.group, error)
        return kept

    def _unwanted(self, asked: Asked, done: asyncio.Task[list[Popped]]) -> None:
        if not done.cancelled() and done.exception() is None:
            for popped in done.result():
                self._handles.give_back(asked.group, popped.topic, popped.receipt)
