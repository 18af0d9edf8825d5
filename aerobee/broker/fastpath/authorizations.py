"""Authorization of pulls on the fast path: the checks of pull/pull_service.py, made once for many pulls
(seam.Authorization)."""

from __future__ import annotations

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.fastpath.exclusions import PULLS, PullContext
from aerobee.broker.fastpath.pull import SQL_PREFIX
from aerobee.broker.fastpath.seam import Authorization, AuthorizationKey
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.remoting.body.heartbeat import BROADCASTING
from aerobee.remoting.body.subscription import EXPRESSION_CHARS_MAX, TYPE_SQL92, SubscriptionData


class Authorizations:
    """Creates authorizations. For a pull without one, pull/pull_service.py serves or refuses it."""

    def __init__(
        self,
        *,
        role: RoleState,
        topics: TopicTable,
        mappings: QueueMappings,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        offsets: ConsumerOffsets,
        live: LiveConfig,
        expressions: Expressions,
    ) -> None:
        self._role = role
        self._expressions = expressions
        self._topics = topics
        self._static = mappings
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._live = live

    def find(self, key: AuthorizationKey) -> Authorization | None:
        """Return the authorization, or None for a pull that is not ordinary."""
        code, group_name, topic_name, text, _ = key
        if text is not None and len(text) > EXPRESSION_CHARS_MAX:
            return None  # pull/pull_service.py refuses it with the reason
        config = self._live.value
        group, topic = self._groups.get(group_name), self._topics.get(topic_name)
        if group is None or topic is None:
            return None
        context = PullContext(
            code,
            config,
            self._static.by_topic,
            serves_group=self._role.serves_group,
            is_readable=self._groups.is_readable(group_name, topic_name),
            awaits_reset=self._awaits_reset(group_name, topic_name, topic.read_queue_nums),
        )
        if any(row.holds(group, topic, context) for row in PULLS):
            return None
        subscription = self._subscription(key, group.consume_broadcast_enable)
        if subscription is None:
            return None
        tag_codes, accept, program = subscription.tag_codes, None, None
        if not subscription.is_tag_filter:
            if subscription.expression_type != TYPE_SQL92 or not config.enable_property_filter:
                return None
            try:
                expression = self._expressions.get(subscription.sub_string)
            except FilterSyntaxError:
                return None  # pull/pull_service.py reports the error
            tag_codes, accept, program = expression.tag_codes, expression.test.record, expression.program
        may_move = config.slave_read_enable
        return Authorization(
            group_name,
            topic_name,
            topic.read_queue_nums,
            tag_codes,
            group.broker_id if may_move else 0,
            group.which_broker_when_consume_slowly if may_move else 0,
            topic.topic_sys_flag,
            group.group_sys_flag,
            accept,
            program,
        )

    def _subscription(self, key: AuthorizationKey, may_broadcast: bool) -> SubscriptionData | None:
        """The subscription of the request, or else of the group's heartbeats; None when pull/pull_service.py must
        decide."""
        _, group_name, topic_name, text, sub_version = key
        if text is not None and text.startswith(SQL_PREFIX):
            return SubscriptionData(topic_name, text.removeprefix(SQL_PREFIX), expression_type=TYPE_SQL92)
        if text is not None:
            return SubscriptionData.parse(topic_name, text)
        members = self._consumers.group(group_name)
        if members is None or (members.message_model == BROADCASTING and not may_broadcast):
            return None
        subscription = members.subscription(topic_name)
        if subscription is None or subscription.sub_version < sub_version:
            return None
        return subscription

    def _awaits_reset(self, group: str, topic: str, queue_count: int) -> bool:
        """Whether the reply to the group's next pull of one of these queues is OFFSET_RESET."""
        offsets = self._offsets
        return offsets.has_resets and any(
            offsets.reset_pending(group, topic, queue_id) for queue_id in range(queue_count)
        )
