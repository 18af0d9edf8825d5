"""Reference implementation of pulls: checks, filter, read, and next offset (PullMessageProcessor).

The filter is in the request, or in the group's heartbeats. Without new messages, if the pull may wait, the outcome is a
pending pull. Data that is not in memory is read in the store's executor, so that a consumer with a large lag never
delays a producer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.filter.expressions import Expression, Expressions
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pull.pending_pulls import PendingPulls
from aerobee.broker.state.config import PERM_READ, BrokerConfig, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.errors import RemoteError
from aerobee.remoting.body.heartbeat import CONSUME_ACTIVELY
from aerobee.remoting.body.subscription import TYPE_TAG, SubscriptionData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.peer import Peer
from aerobee.remoting.protocol import FAQ, HOLD_MS_MAX
from aerobee.store.log.stored_message import GetResult, GetStatus
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.extended_queue import BitmapAccept
from aerobee.system_names import is_system_group

log = logging.getLogger(__name__)

FOUND_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# For these the code depends on the requested offset: 0 waits, another one is corrected.
EMPTY_QUEUE = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})
FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST, FORBIDDEN_SUBSCRIPTION = (
    1,
    2,
    3,
    4,
    5,
)


@dataclass(slots=True)
class PullRequest:
    """The pull request of a consumer.

    `expression` None: use the subscription of the group's heartbeats, of at least `subscription_version`.
    `commit_offset` is committed by the pull. `hold_ms`: longest wait for a message; None: no wait.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    expression: str | None = None
    expression_type: str = TYPE_TAG
    subscription_version: int = 0
    commit_offset: int | None = None
    hold_ms: int | None = None
    is_lite: bool = False


@dataclass(slots=True)
class Pull:
    """One pull after its checks."""

    peer: Peer
    request: PullRequest
    group: SubscriptionGroupConfig
    topic: TopicConfig
    tag_codes: frozenset[int] | None
    accept: Callable[[bytes], bool] | None


@dataclass(slots=True)
class PullOutcome:
    """Result of one pull. If `hold_ms` is set, the pull must wait for a message; the other fields are then invalid."""

    code: int  # a ResponseCode: 0, 19, 20, 21
    remark: str
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    suggested_broker_id: int = 0
    body: bytes = b""
    hold_ms: int | None = None


class PullRefused(RemoteError):
    """A refused pull, with the forbiddenType of the reply (0: none)."""

    def __init__(self, code: int, remark: str, forbidden_type: int = 0) -> None:
        super().__init__(code, remark)
        self.forbidden_type = forbidden_type


class PullService:
    """Checks and executes pulls, independent of the protocol: pull_calls.py handles remoting requests."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        pending_pulls: PendingPulls,
        expressions: Expressions,
        filters: FilterTable | None = None,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._stats = stats
        self._pending_pulls = pending_pulls
        self._live = live
        self._identity = identity
        self._role = role
        self._clock = clock
        self._expressions = expressions
        self._filters = filters

    def is_cold(self, pull: Pull) -> bool:
        """Whether its data is not in memory and requires read_cold()."""
        request = pull.request
        return self._store.is_cold(
            request.topic, request.queue_id, request.offset, count_max=request.count_max
        )

    def read(self, pull: Pull, *, may_hold: bool) -> PullOutcome:
        """Read now. Counts the pull, stores and commits its offsets. Raises StoreError."""
        started = self._clock.monotonic()
        return self._reset(pull) or self._outcome(pull, self._read(pull), started, may_hold=may_hold)

    async def read_cold(self, pull: Pull, *, may_hold: bool) -> PullOutcome:
        """As read(), after loading the data from disk in the store's executor."""
        moved = self._reset(pull)
        if moved is not None:
            return moved
        started = self._clock.monotonic()
        request = pull.request
        result = await self._store.get_messages_cold(
            request.topic,
            request.queue_id,
            request.offset,
            count_max=request.count_max,
            tag_codes=pull.tag_codes,
            accept=pull.accept,
        )
        if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
            # A message may have arrived during the read, when no pull was pending: check again.
            result = self._read(pull)
        return self._outcome(pull, result, started, may_hold=may_hold)

    def _read(self, pull: Pull) -> GetResult:
        request = pull.request
        return self._store.get_messages(
            request.topic,
            request.queue_id,
            request.offset,
            count_max=request.count_max,
            tag_codes=pull.tag_codes,
            accept=pull.accept,
        )

    # --- checks

    def check(self, peer: Peer, request: PullRequest) -> Pull:
        """Check whether the peer may pull, and find its filter. Raises PullRefused."""
        config = self._live.value
        group_name, topic_name = request.group, request.topic
        if not config.broker_permission & PERM_READ:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._identity.address}] pulling message is forbidden",
                FORBIDDEN_BROKER,
            )
        if request.is_lite and not config.lite_pull_message_enable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._identity.address}] for lite pull consumer is forbidden (litePullMessageEnable)",
                FORBIDDEN_BROKER,
            )
        if not self._role.serves_reads:
            raise PullRefused(ResponseCode.SYSTEM_BUSY, f"this broker serves no pulls: {self._role.reason}")
        if not self._role.serves_group and not config.slave_read_enable:
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
        queue_id = request.queue_id
        if not 0 <= queue_id < topic.read_queue_nums:
            raise PullRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic_name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{peer.address}]",
            )
        if config.reject_pull_consumer_enable and not self._is_pushed_to(peer, group_name):
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist, or the pull consumer is rejected by server: {group_name} "
                f"(rejectPullConsumerEnable)\n{FAQ}",
            )
        tag_codes, accept = self._filter(peer, request, group, config)
        return Pull(peer, request, group, topic, tag_codes, accept)

    def _is_pushed_to(self, peer: Peer, group: str) -> bool:
        """Whether the peer is a member of the group, or the group consumes by push, or is a system group."""
        members = self._consumers.group(group)
        if members is None:
            return is_system_group(group)
        return members.consume_type != CONSUME_ACTIVELY or peer in members.channels or is_system_group(group)

    def _filter(
        self,
        peer: Peer,
        request: PullRequest,
        group: SubscriptionGroupConfig,
        config: BrokerConfig,
    ) -> tuple[frozenset[int] | None, Callable[[bytes], bool] | None]:
        """Return (tag hashes or None for all, test of a record or None). Raises PullRefused."""
        members = self._consumers.group(group.group_name)
        if members is not None and members.refused and peer in members.refused:
            raise PullRefused(ResponseCode.NO_PERMISSION, str(members.refused[peer]), FORBIDDEN_SUBSCRIPTION)
        topic, expression = request.topic, request.expression
        if expression is not None:
            if request.expression_type == TYPE_TAG:
                return SubscriptionData.parse(topic, expression).tag_codes, None
            found = self._sql(expression, request.expression_type, config)
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
        if subscription.sub_version < request.subscription_version:
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
        """The compiled expression. Raises PullRefused, with the column of an error in the expression."""
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

    # --- outcomes

    def _reset(self, pull: Pull) -> PullOutcome | None:
        """The offset to which the group was reset; None without a reset, or when the pull already starts there."""
        if not self._offsets.has_resets:
            return None
        request = pull.request
        offset = self._offsets.take_reset(request.group, request.topic, request.queue_id)
        if offset is None or offset == request.offset:
            return None  # a member that has just started requests the new offset already
        return PullOutcome(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset)

    def _outcome(self, pull: Pull, result: GetResult, started: float, *, may_hold: bool) -> PullOutcome:
        config = self._live.value
        master = self._role.is_master
        request = pull.request
        group_name, topic_name = pull.group.group_name, pull.topic.topic_name
        status, next_offset = result.status, result.next_offset
        if status in EMPTY_QUEUE:
            code = ResponseCode.PULL_OFFSET_MOVED if request.offset != 0 else ResponseCode.PULL_NOT_FOUND
        else:
            code = FOUND_CODES[status]
        if (
            not master
            and code == ResponseCode.PULL_OFFSET_MOVED
            and not self._store.config.offset_check_in_slave
        ):
            code, next_offset = ResponseCode.PULL_RETRY_IMMEDIATELY, request.offset
        if may_hold and master and request.commit_offset is not None:
            # A refused commit must not withhold the messages.
            self._offsets.commit_by_client(
                group_name, topic_name, request.queue_id, request.commit_offset, pull.peer.address
            )
        outcome = PullOutcome(code, status.name, next_offset, result.min_offset, result.max_offset)
        if code == ResponseCode.SUCCESS:
            self._stats.group_get(group_name, topic_name, result.count, len(result.body))
            self._stats.get_took(self._clock.monotonic() - started)
        else:
            self._stats.get_miss()
            if code == ResponseCode.PULL_NOT_FOUND and may_hold:
                outcome.hold_ms = self._hold_ms(pull.peer, request, config)
                if outcome.hold_ms is not None:
                    return outcome
        self._offsets.note_pull(group_name, topic_name, request.queue_id, next_offset)
        if config.slave_read_enable:
            outcome.suggested_broker_id = (
                pull.group.which_broker_when_consume_slowly if result.suggest_slave else pull.group.broker_id
            )
        # RocketMQ reports -1 as the begin of a batch queue that never had a message.
        if not result.max_offset and pull.topic.is_batch:
            outcome.min_offset = -1
        outcome.body = result.body
        return outcome

    def _hold_ms(self, peer: Peer, request: PullRequest, config: BrokerConfig) -> int | None:
        """Longest wait of the pull; None when it does not allow one, or no further pull may wait."""
        if request.hold_ms is None or self._pending_pulls.is_full_for(peer):
            return None
        if not config.long_polling_enable:
            return config.short_polling_time_mills
        return min(max(0, request.hold_ms), HOLD_MS_MAX)
