"""PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361 (PullMessageProcessor).

A pull is checked, its filter is found (in the request, or in what the group's heartbeats said), the store is read,
and the reply says where to go on. With nothing new and leave to suspend it is held. Data that is not in memory is
read in the store's executor, so that a consumer far behind never delays a producer.

The reply's four offsets are in every reply of code 0, 19, 20 and 21: clients fail without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from aerobee.broker.config import PERM_READ, BrokerConfig, LiveConfig
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.filter.expressions import Expression, Expressions
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.identity import BrokerIdentity
from aerobee.broker.pull.held_pulls import HOLD_MS_MAX, HeldPull, HeldPulls
from aerobee.broker.refusal import FAQ
from aerobee.broker.stats import BrokerStats
from aerobee.broker.topic_table import TopicTable
from aerobee.errors import AerobeeError, RemoteError
from aerobee.remoting.body.subscription import TYPE_TAG, SubscriptionData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.store.config import StoreConfig
from aerobee.store.extended_queue import BitmapAccept
from aerobee.store.stored_message import GetResult, GetStatus

log = logging.getLogger(__name__)

# sysFlag bits of a pull (PullSysFlag)
COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4
CLASS_FILTER = 8

FOUND_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# Of these the code depends on the offset asked for: 0 waits, another one is corrected.
EMPTY_QUEUE = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})
FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST, FORBIDDEN_SUBSCRIPTION = (
    1,
    2,
    3,
    4,
    5,
)
COUNT_MAX = 1024  # messages of one reply whatever the client asks for; the store bounds them further


class MessageReader(Protocol):
    """What pulling needs of the store."""

    config: StoreConfig

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        tag_codes: frozenset[int] | None = None,
        accept: Callable[[bytes], bool] | None = None,
    ) -> GetResult: ...

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool: ...

    async def get_messages_cold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        tag_codes: frozenset[int] | None = None,
        accept: Callable[[bytes], bool] | None = None,
    ) -> GetResult: ...


@dataclass(slots=True)
class _Pull:
    """One pull after its checks."""

    peer: Peer
    request: RemotingCommand
    group: SubscriptionGroupConfig
    topic: TopicConfig
    queue_id: int
    offset: int
    count_max: int
    flags: int
    tag_codes: frozenset[int] | None
    accept: Callable[[bytes], bool] | None


class PullRefused(RemoteError):
    """A pull that is refused, with the forbiddenType of the reply (0: none)."""

    def __init__(self, code: int, remark: str, forbidden_type: int = 0) -> None:
        super().__init__(code, remark)
        self.forbidden_type = forbidden_type


class PullCalls:
    """Handlers of both pull requests. A hot pull is a plain function; a cold one is a coroutine."""

    def __init__(
        self,
        *,
        store: MessageReader,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        held: HeldPulls,
        expressions: Expressions,
        filters: FilterTable | None = None,
        live: LiveConfig,
        identity: BrokerIdentity,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._stats = stats
        self._held = held
        self._live = live
        self._identity = identity
        self._spawn = spawn
        self._expressions = expressions
        self._filters = filters
        held.resume = self.resume

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """Serve a pull that just came in: it may be held, and it commits the offset in its header."""
        try:
            pull = self._check(peer, request)
        except PullRefused as refusal:
            ext = {"forbiddenType": str(refusal.forbidden_type)} if refusal.forbidden_type else {}
            return request.reply(refusal.code, remark=refusal.remark, ext=ext)
        if self._offsets.has_resets:
            moved = self._answer_reset(pull)
            if moved is not None:
                return moved
        if self._store.is_cold(pull.topic.topic_name, pull.queue_id, pull.offset):
            return self._pull_cold(pull, may_suspend=True)
        return self._answer(pull, self._read(pull), may_suspend=True)

    def resume(self, held: HeldPull) -> None:
        """Serve a pull that was held; it is answered now, whatever there is."""
        request = decode_frame(held.frame)
        try:
            pull = self._check(held.peer, request)
            reply = self._answer_reset(pull) if self._offsets.has_resets else None
            if reply is None:
                if self._store.is_cold(pull.topic.topic_name, pull.queue_id, pull.offset):
                    self._spawn(self._resume_cold(pull))
                    return
                reply = self._answer(pull, self._read(pull), may_suspend=False)
        except AerobeeError as error:
            code = error.code if isinstance(error, RemoteError) else int(ResponseCode.SYSTEM_ERROR)
            reply = request.reply(code, remark=str(error), ext={})
        if reply is not None:
            held.peer.send(reply)

    def _read(self, pull: _Pull) -> GetResult:
        return self._store.get_messages(
            pull.topic.topic_name,
            pull.queue_id,
            pull.offset,
            count_max=pull.count_max,
            tag_codes=pull.tag_codes,
            accept=pull.accept,
        )

    async def _pull_cold(self, pull: _Pull, *, may_suspend: bool) -> Reply:
        result = await self._store.get_messages_cold(
            pull.topic.topic_name,
            pull.queue_id,
            pull.offset,
            count_max=pull.count_max,
            tag_codes=pull.tag_codes,
            accept=pull.accept,
        )
        if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
            # A message may have come in while this waited, and its notice found nothing held: look again.
            result = self._read(pull)
        return self._answer(pull, result, may_suspend=may_suspend)

    async def _resume_cold(self, pull: _Pull) -> None:
        try:
            reply = await self._pull_cold(pull, may_suspend=False)
        except AerobeeError as error:
            reply = pull.request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error), ext={})
        if reply is not None and pull.peer.is_open:
            pull.peer.send(reply)

    # --- checks

    def _check(self, peer: Peer, request: RemotingCommand) -> _Pull:
        config = self._live.value
        group_name, topic_name = request.text("consumerGroup"), request.text("topic")
        if not config.broker_permission & PERM_READ:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._identity.address}] pulling message is forbidden",
                FORBIDDEN_BROKER,
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._identity.address}] for lite pull consumer is forbidden (litePullMessageEnable)",
                FORBIDDEN_BROKER,
            )
        if not self._identity.is_master and not config.slave_read_enable:
            raise PullRefused(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST] a slave with slaveReadEnable=false answers no pulls",
            )
        group = self._groups.find_or_create(group_name)
        if group is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group_name}] does not exist, "
                f"create it, or set autoCreateSubscriptionGroup\n{FAQ}",
            )
        if not group.consume_enable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {group_name} (consumeEnable=false)",
                FORBIDDEN_GROUP,
            )
        topic = self._topics.get(topic_name)
        if topic is None:
            raise PullRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic_name}] not exist, apply first please! \n{FAQ}"
            )
        if not topic.is_readable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic_name}] pulling message is forbidden (perm {topic.perm})",
                FORBIDDEN_TOPIC,
            )
        if not self._groups.is_readable(group_name, topic_name):
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group [{group_name}] is forbidden for topic[{topic_name}]",
                FORBIDDEN_SUBSCRIPTION,
            )
        queue_id = request.integer("queueId")
        if not 0 <= queue_id < topic.read_queue_nums:
            raise PullRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic_name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{peer.address}]",
            )
        flags = request.integer("sysFlag", 0)
        tag_codes, accept = self._filter(peer, request, group, topic_name, flags, config)
        return _Pull(
            peer,
            request,
            group,
            topic,
            queue_id,
            request.integer("queueOffset"),
            min(max(1, request.integer("maxMsgNums")), COUNT_MAX),
            flags,
            tag_codes,
            accept,
        )

    def _filter(
        self,
        peer: Peer,
        request: RemotingCommand,
        group: SubscriptionGroupConfig,
        topic: str,
        flags: int,
        config: BrokerConfig,
    ) -> tuple[frozenset[int] | None, Callable[[bytes], bool] | None]:
        """Return (tag hashes or None for all, test of a record or None). Raises PullRefused."""
        members = self._consumers.group(group.group_name)
        if members is not None and members.refused and peer in members.refused:
            raise PullRefused(ResponseCode.NO_PERMISSION, str(members.refused[peer]), FORBIDDEN_SUBSCRIPTION)
        if flags & SUBSCRIPTION:
            expression = request.text("subscription", "")
            if (request.field("expressionType") or TYPE_TAG) == TYPE_TAG:
                return SubscriptionData.parse(topic, expression).tag_codes, None
            found = self._sql(expression, request.text("expressionType"), config)
            return found.tag_codes, found.test.record
        if members is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: no heartbeat of group {group.group_name} came in\n{FAQ}",
            )
        if members.message_model == "BROADCASTING" and not group.consume_broadcast_enable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group.group_name}] can not consume by broadcast way "
                "(consumeBroadcastEnable=false)",
                FORBIDDEN_BROADCAST,
            )
        subscription = members.subscription(topic)
        if subscription is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {group.group_name} has not subscribed to {topic}\n{FAQ}",
            )
        if subscription.sub_version < request.integer("subVersion", 0):
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: version {subscription.sub_version} is known",
            )
        if subscription.is_tag_filter:
            return subscription.tag_codes, None
        found = self._sql(subscription.sub_string, subscription.expression_type, config)
        if self._filters is not None and self._store.config.enable_consume_queue_ext:
            known = self._filters.find(group.group_name, topic)
            if known is not None and known.expression == subscription.sub_string:
                return found.tag_codes, BitmapAccept(found.test.record, known.may_take)
        return found.tag_codes, found.test.record

    def _sql(self, expression: str, expression_type: str, config: BrokerConfig) -> Expression:
        """The compiled expression. Raises PullRefused, for a fault in the expression with its column."""
        if not config.enable_property_filter:
            raise PullRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {expression_type}; "
                "set enablePropertyFilter=true in its configuration",
            )
        try:
            return self._expressions.get(expression)
        except FilterSyntaxError as error:
            raise PullRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    # --- answers

    def _answer_reset(self, pull: _Pull) -> RemotingCommand | None:
        offset = self._offsets.take_reset(pull.group.group_name, pull.topic.topic_name, pull.queue_id)
        if offset is None or offset == pull.offset:
            return None  # a member that has just started asks for the new offset already
        ext = self._offset_fields(pull, offset, 0, 0, suggested=0)
        return pull.request.reply(ResponseCode.PULL_OFFSET_MOVED, remark="OFFSET_RESET", ext=ext)

    def _answer(self, pull: _Pull, result: GetResult, *, may_suspend: bool) -> Reply:
        config = self._live.value
        master = self._identity.is_master
        group_name, topic_name = pull.group.group_name, pull.topic.topic_name
        status, next_offset = result.status, result.next_offset
        if status in EMPTY_QUEUE:
            code = ResponseCode.PULL_OFFSET_MOVED if pull.offset != 0 else ResponseCode.PULL_NOT_FOUND
        else:
            code = FOUND_CODES[status]
        if (
            not master
            and code == ResponseCode.PULL_OFFSET_MOVED
            and not self._store.config.offset_check_in_slave
        ):
            code, next_offset = ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset
        if may_suspend and master and pull.flags & COMMIT_OFFSET:
            # One that is not taken is no reason to withhold the messages.
            self._offsets.commit_by_client(
                group_name,
                topic_name,
                pull.queue_id,
                pull.request.integer("commitOffset"),
                pull.peer.address,
            )
        if code == ResponseCode.SUCCESS:
            self._stats.group_get(group_name, topic_name, result.count, len(result.body))
        else:
            self._stats.get_miss()
            if code == ResponseCode.PULL_NOT_FOUND and may_suspend and self._hold(pull, config):
                return None
        self._offsets.note_pull(group_name, topic_name, pull.queue_id, next_offset)
        suggested = 0
        if config.slave_read_enable:
            suggested = (
                pull.group.which_broker_when_consume_slowly if result.suggest_slave else pull.group.broker_id
            )
        # RocketMQ tells that a batch queue that never had a message begins at -1.
        low = -1 if not result.max_offset and pull.topic.is_batch else result.min_offset
        ext = self._offset_fields(pull, next_offset, low, result.max_offset, suggested=suggested)
        return pull.request.reply(code, remark=status.name, ext=ext, body=result.body)

    def _hold(self, pull: _Pull, config: BrokerConfig) -> bool:
        """Hold the pull if it asked for that. Returns whether it is held."""
        if not pull.flags & SUSPEND or self._held.is_full or pull.request.is_oneway:
            return False
        hold_ms = config.short_polling_time_mills
        if config.long_polling_enable:
            hold_ms = min(max(0, pull.request.integer("suspendTimeoutMillis", 0)), HOLD_MS_MAX)
        held = HeldPull(
            pull.peer,
            encode_frame(pull.request),
            pull.group.group_name,
            pull.topic.topic_name,
            pull.queue_id,
            pull.tag_codes,
            pull.accept,
        )
        self._held.hold(held, hold_ms / 1000)
        return True

    def _offset_fields(
        self, pull: _Pull, next_offset: int, min_offset: int, max_offset: int, *, suggested: int
    ) -> dict[str, str]:
        return {
            "suggestWhichBrokerId": str(suggested),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(min_offset),
            "maxOffset": str(max_offset),
            "topicSysFlag": str(pull.topic.topic_sys_flag),
            "groupSysFlag": str(pull.group.group_sys_flag),
        }
