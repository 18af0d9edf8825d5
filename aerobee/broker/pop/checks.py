"""Checks that every POP request must pass, independent of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aerobee.broker.consumer.group_table import GroupTable, require_client_group
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.state.config import PERM_READ, BrokerConfig, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.remoting.body.pop_handle import RETRY_V1, RETRY_V2, retry_topic_v1, retry_topic_v2
from aerobee.remoting.body.subscription import TYPE_TAG, SubscriptionData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.protocol import ANY_QUEUE, FAQ, TYPE_ATTRIBUTE

Filter = tuple[frozenset[int] | None, Callable[[bytes], bool] | None]
GRANTS_MAX = 10_000
FILTERS_MAX = 1_000
PRIORITY_TYPE = "PRIORITY"


@dataclass(frozen=True, slots=True)
class PopGrant:
    """Result of the checks for one group and topic; valid while the role and the four settings objects are the same."""

    config: BrokerConfig
    topic: TopicConfig
    group: SubscriptionGroupConfig
    forbidden: Mapping[str, Mapping[str, int]]
    retries: tuple[tuple[str, str], ...]  # as retry_topics()
    has_priorities: bool


class PopChecks:
    """Finds topic, group and filter of a request, or raises Refused."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        expressions: Expressions,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._live = live
        self._identity = identity
        self._role = role
        self._expressions = expressions
        self._grants: dict[tuple[str, str], PopGrant] = {}
        role.on_change(lambda _: self._grants.clear())
        self._tags: dict[tuple[str, str], frozenset[int] | None] = {}

    def grant(self, group_name: str, topic_name: str, queue_id: int) -> PopGrant:
        """As may_consume(), for requests that come again and again."""
        known = self._grants.get((group_name, topic_name))
        if (
            known is not None
            and known.config is self._live.value
            and known.topic is self._topics.get(topic_name)
            and known.group is self._groups.groups.get(group_name)
            and known.forbidden is self._groups.forbidden
        ):
            self.queue(known.topic, queue_id, Reason.QUEUE_ILLEGAL)
            return known
        group, topic = self.may_consume(group_name, topic_name, queue_id)
        if len(self._grants) >= GRANTS_MAX:
            self._grants.clear()
        known = self._grants[(group_name, topic_name)] = PopGrant(
            self._live.value,
            topic,
            group,
            self._groups.forbidden,
            self.retry_topics(group_name, topic_name),
            topic.attributes.get(TYPE_ATTRIBUTE) == PRIORITY_TYPE,
        )
        return known

    def may_consume(
        self, group_name: str, topic_name: str, queue_id: int
    ) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """Check requests that deliver messages, and those that query whether there are any."""
        if not self._live.value.broker_permission & PERM_READ:
            raise Refused(Reason.FORBIDDEN, f"the broker[{self._identity.address}] pop message is forbidden")
        self.require_master()
        self.client_group(group_name)
        topic = self.topic(topic_name)
        if not topic.is_readable:
            raise Refused(
                Reason.FORBIDDEN,
                f"the topic[{topic_name}] peeking message is forbidden (perm {topic.perm})",
            )
        self.queue(topic, queue_id, Reason.QUEUE_ILLEGAL)
        group = self._groups.find_or_create(group_name)
        if group is None:
            raise Refused(
                Reason.GROUP_UNKNOWN,
                f"subscription group [{group_name}] does not exist, "
                f"create it, or set autoCreateSubscriptionGroup\n{FAQ}",
            )
        if not group.consume_enable:
            raise Refused(
                Reason.FORBIDDEN,
                f"subscription group no permission, {group_name} (consumeEnable=false)",
            )
        if not self._groups.is_readable(group_name, topic_name):
            raise Refused(
                Reason.FORBIDDEN,
                f"the consumer group [{group_name}] is forbidden for topic[{topic_name}]",
            )
        return group, topic

    def require_master(self) -> None:
        """Raise Refused at a broker that delivers no messages."""
        if not self._role.serves_group:
            raise Refused(
                Reason.NOT_MASTER,
                f"broker {self._identity.name} id {self._identity.broker_id} is a slave: pop from the master",
            )

    def client_group(self, group: str) -> None:
        """Raise Refused for a group in which the broker keeps its own state."""
        require_client_group(group)

    def topic(self, name: str) -> TopicConfig:
        """The topic's settings. Raises Refused when it is unknown."""
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(Reason.TOPIC_UNKNOWN, f"topic[{name}] not exist, apply first please! {FAQ}")
        return topic

    def queue(self, topic: TopicConfig, queue_id: int, reason: Reason) -> None:
        """Raise Refused unless the topic has that queue; -1 means any queue."""
        if queue_id != ANY_QUEUE and not 0 <= queue_id < topic.read_queue_nums:
            raise Refused(
                reason,
                f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}]",
            )

    def filter(self, topic: str, expression_type: str | None, expression: str | None) -> Filter:
        """(tag hashes or None for all, test of a record or None)."""
        if (expression_type or TYPE_TAG) == TYPE_TAG:
            if not expression or expression == "*":
                return None, None
            key = (topic, expression)
            if key not in self._tags:
                if len(self._tags) >= FILTERS_MAX:
                    self._tags.clear()
                self._tags[key] = SubscriptionData.parse(topic, expression).tag_codes
            return self._tags[key], None
        if not self._live.value.enable_property_filter:
            raise Refused(
                Reason.FILTERS_OFF,
                "The broker does not support consumer to filter message by SQL92 (enablePropertyFilter=false)",
            )
        try:
            found = self._expressions.get(expression or "")
        except FilterSyntaxError as error:
            raise Refused(Reason.FILTER_ILLEGAL, str(error)) from error
        return found.tag_codes, found.test.record

    def with_queues(self, retries: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str, int], ...]:
        """Retry topics with the number of their readable queues; one that is not there yet has one."""
        found = [(name, retry, self._topics.get(name)) for name, retry in retries]
        return tuple(
            (name, retry, 1 if topic is None else max(1, topic.read_queue_nums))
            for name, retry, topic in found
        )

    def retry_topics(self, group: str, topic: str) -> tuple[tuple[str, str], ...]:
        """Topics that may store unacknowledged messages of a topic: (topic, r)."""
        if topic.startswith("%RETRY%"):
            return ()
        config = self._live.value
        found = []
        if config.enable_retry_topic_v2:
            found.append((retry_topic_v2(group, topic), RETRY_V2))
        if not config.enable_retry_topic_v2 or config.retrieve_message_from_pop_retry_topic_v1:
            found.append((retry_topic_v1(group, topic), RETRY_V1))
        return tuple(found)
