"""Permissions that each request needs: from its code, fields and body to resources and actions. No I/O.

Source: DefaultAuthorizationContextBuilder and the annotations of the request headers (RocketMQ 5.5.0). Requests that RocketMQ does
not check need a permission here; `STRICTER` lists them: at RocketMQ every user may make them.

All needs of a request must be met; one need is met by any one of its actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aerobee.access.resource import Action, Resource, ResourceType, cluster, every, group, topic
from aerobee.message import RETRY_PREFIX, decode_properties
from aerobee.remoting import fastjson
from aerobee.remoting.body.pop_handle import topic_before_retry
from aerobee.remoting.codes import RequestCode as R
from aerobee.remoting.command import RemotingCommand

PUB, SUB = frozenset({Action.PUB}), frozenset({Action.SUB})
CREATE, UPDATE, DELETE = frozenset({Action.CREATE}), frozenset({Action.UPDATE}), frozenset({Action.DELETE})
GET, LIST = frozenset({Action.GET}), frozenset({Action.LIST})
SUB_OR_GET, SUB_OR_UPDATE = SUB | GET, SUB | UPDATE
ROUTE = PUB | SUB | GET
POP_RETRY_SEPARATOR = "+"
RETRY_TOPIC = "RETRY_TOPIC"  # the property that names the topic a retried message was sent to first
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"  # the property that names LMQs (store/queue/queue_table.py)


@dataclass(frozen=True, slots=True)
class Need:
    """One required permission: any of `actions` on `resource`."""

    resource: Resource
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{'/'.join(action.name.capitalize() for action in sorted(self.actions))} on {self.resource}"


Needs = tuple[Need, ...]
Rule = Callable[[RemotingCommand, str], Iterator[Need]]


def needs_of(request: RemotingCommand, cluster_name: str) -> Needs:
    """All permissions that this request needs. Raises AerobeeError for an unreadable body.

    A code without a rule needs Cluster:Update, so that a new request is not open by mistake.
    """
    rule = RULES.get(request.code, _on_cluster(UPDATE))
    return tuple(rule(request, cluster_name))


def topic_or_group(name: str, on_topic: frozenset[Action], on_group: frozenset[Action]) -> Need:
    """A retry topic belongs to its group: `%RETRY%group`, of POP consumers `%RETRY%group+topic`."""
    if name.startswith(RETRY_PREFIX):
        return Need(group(name[len(RETRY_PREFIX) :].partition(POP_RETRY_SEPARATOR)[0]), on_group)
    return Need(topic(name), on_topic)


def _text(request: RemotingCommand, name: str) -> str:
    return request.field(name) or ""


# --- rules


def _on_cluster(actions: frozenset[Action]) -> Rule:
    def rule(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
        yield Need(cluster(cluster_name), actions)

    return rule


def _on_every(kind: ResourceType, actions: frozenset[Action]) -> Rule:
    def rule(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
        yield Need(every(kind), actions)

    return rule


def _fields(
    actions: frozenset[Action],
    *,
    topics: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    split: str = "",
    retry: frozenset[Action] | None = None,
) -> Rule:
    """The needs for each present field; without any, for the whole cluster."""

    def rule(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
        named = False
        for names, is_topic in ((topics, True), (groups, False)):
            for field_name in names:
                text = request.field(field_name) or ""
                for name in filter(None, text.split(split) if split else [text]):
                    named = True
                    yield (
                        topic_or_group(name, actions, retry or actions)
                        if is_topic
                        else Need(group(name), actions)
                    )
        if not named:
            yield Need(cluster(cluster_name), actions)

    return rule


def _sends_to(field_name: str, properties_name: str = "") -> Rule:
    """The topic that the handler reads, and no other: a request may contain both fields. Also the LMQs of a
    message; the fast path, which checks only the topic, serves no message with LMQs.

    A consumer that sends to its retry topic names the topic the message came from. Operators send dead letters back there, so the consumer
    must be one of that topic.
    """

    def rule(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
        target = _text(request, field_name)
        yield topic_or_group(target, PUB, SUB)
        properties = _text(request, properties_name) if properties_name else ""
        if target.startswith(RETRY_PREFIX) and RETRY_TOPIC in properties:
            origin = decode_properties(properties).get(RETRY_TOPIC, "")
            if origin:
                yield topic_or_group(origin, SUB, SUB)
        if MULTI_DISPATCH in properties:
            for name in decode_properties(properties).get(MULTI_DISPATCH, "").split(","):
                if name:
                    yield Need(topic(name), PUB)

    return rule


def _route(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    yield topic_or_group(_text(request, "topic"), ROUTE, SUB_OR_GET)


def _create_schedule(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    """Who makes the broker send to a topic must be permitted to send to it."""
    yield Need(cluster(cluster_name), UPDATE)
    yield topic_or_group(_text(request, "topic"), PUB, SUB)


def _list_schedules(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    """A body is shown to those who may see it once it is sent."""
    yield from _READ_CLUSTER(request, cluster_name)
    if _text(request, "withBody"):
        yield topic_or_group(_text(request, "topic"), SUB_OR_GET, SUB_OR_GET)


def _consume(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    yield topic_or_group(_text(request, "topic"), SUB, SUB)
    yield Need(group(_text(request, "consumerGroup")), SUB)


def _settles(topic_name: str, group_name: str) -> Iterator[Need]:
    """Topic of a message that a POP consumer acknowledges or defers: the topic itself, or the group's retry topic for it.

    Clients name `%RETRY%group_topic` (V1), which by itself cannot be distinguished from the retry topic of a group `group_topic`; with the
    request's group it can. A user with permission to pop the topic for the group receives its messages anyway.
    """
    yield topic_or_group(topic_before_retry(topic_name, group_name), SUB, SUB)
    yield Need(group(group_name), SUB)


def _settle(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    yield from _settles(_text(request, "topic"), _text(request, "consumerGroup"))


def _offset(actions: frozenset[Action]) -> Rule:
    def rule(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
        yield topic_or_group(_text(request, "topic"), actions, actions)
        yield Need(group(_text(request, "consumerGroup")), actions)

    return rule


def _unregister(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    name = _text(request, "consumerGroup")
    if name:
        yield Need(group(name), SUB)


def _end_transaction(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    name = _text(request, "topic")
    if name:  # clients before 5.3 do not name it; the half message they settle was sent with permission
        yield Need(topic(name), PUB)


def _body(request: RemotingCommand) -> Any:
    return fastjson.loads_object(request.body, "the body", fastjson.REQUEST_DIALECT_BYTES_MAX)


def _heartbeat(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    consumers = _dicts(_body(request), "consumerDataSet")
    for name in _names(consumers, "groupName"):
        yield Need(group(name), SUB)
    subscriptions = [each for consumer in consumers for each in _dicts(consumer, "subscriptionDataSet")]
    for name in _names(subscriptions, "topic"):
        yield topic_or_group(name, SUB, SUB)


def _lite_subscriptions(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    entries = _dicts(_body(request), "subscriptionSet")
    for name in _names(entries, "group"):
        yield Need(group(name), SUB)
    for name in _names(entries, "topic"):
        yield topic_or_group(name, SUB, SUB)


def _locks(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    body = _body(request)
    yield Need(group(str(body.get("consumerGroup", ""))), SUB)
    for name in _names(_dicts(body, "mqSet"), "topic"):
        yield topic_or_group(name, SUB, SUB)


def _batch_ack(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    entries = _dicts(_body(request), "acks")
    pairs = dict.fromkeys((str(entry.get("t", "")), str(entry.get("c", ""))) for entry in entries)
    yield from dict.fromkeys(need for pair in pairs for need in _settles(*pair))


def _body_names(
    list_key: str, name_key: str, make: Callable[[str], Resource], actions: frozenset[Action]
) -> Rule:
    """The names in a JSON body; without `list_key` the body is one such object."""

    def rule(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
        body = _body(request)
        for entry in _dicts(body, list_key) if list_key else [body]:
            yield Need(make(str(entry.get(name_key, ""))), actions)

    return rule


def _assignment(actions: frozenset[Action]) -> Rule:
    def rule(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
        body = _body(request)
        yield topic_or_group(str(body.get("topic", "")), actions, actions)
        yield Need(group(str(body.get("consumerGroup", ""))), actions)

    return rule


def _check_client(request: RemotingCommand, cluster_name: str) -> Iterator[Need]:
    body = _body(request)
    subscription = body.get("subscriptionData")
    yield Need(group(str(body.get("group", ""))), SUB)
    if isinstance(subscription, dict):
        yield topic_or_group(str(subscription.get("topic", "")), SUB, SUB)


def _dicts(fields: Any, key: str) -> list[dict[str, Any]]:
    found = fields.get(key) if isinstance(fields, dict) else None
    if isinstance(found, dict):
        found = list(found.values())
    return [each for each in found or () if isinstance(each, dict)]


def _names(entries: list[dict[str, Any]], key: str) -> dict[str, None]:
    """Each name once, in order: a body may repeat one some ten thousand times."""
    return dict.fromkeys(str(each.get(key, "")) for each in entries)


_topic, _group, _both = ("topic",), ("group",), ("consumerGroup",)
_READ_CLUSTER, _CHANGE_CLUSTER = _on_cluster(GET), _on_cluster(UPDATE)

RULES: dict[int, Rule] = {
    **dict.fromkeys((R.SEND_MESSAGE, R.SEND_REPLY_MESSAGE), _sends_to("topic", "properties")),
    **dict.fromkeys((R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.SEND_REPLY_MESSAGE_V2), _sends_to("b", "i")),
    R.RECALL_MESSAGE: _sends_to("topic"),
    R.END_TRANSACTION: _end_transaction, R.GET_ROUTEINFO_BY_TOPIC: _route,
    R.PULL_MESSAGE: _consume, R.LITE_PULL_MESSAGE: _consume, R.POP_MESSAGE: _consume, R.POP_LITE_MESSAGE: _consume,
    R.LITE_SUBSCRIPTION_CTL: _lite_subscriptions, R.PEEK_MESSAGE: _consume, R.AEROBEE_WITHDRAW_POP: _consume,
    R.GET_BROKER_LITE_INFO: _READ_CLUSTER, R.GET_PARENT_TOPIC_INFO: _fields(GET, topics=_topic),
    R.GET_LITE_TOPIC_INFO: _fields(GET, topics=("parentTopic",)),
    R.GET_LITE_CLIENT_INFO: _fields(GET, topics=("parentTopic",), groups=_group),
    R.GET_LITE_GROUP_INFO: _fields(GET, groups=_group), R.TRIGGER_LITE_DISPATCH: _fields(UPDATE, groups=_group),
    R.ACK_MESSAGE: _settle, R.CHANGE_MESSAGE_INVISIBLETIME: _settle, R.NOTIFICATION: _consume,
    R.BATCH_ACK_MESSAGE: _batch_ack, R.POLLING_INFO: _offset(SUB_OR_GET),
    R.HEART_BEAT: _heartbeat, R.UNREGISTER_CLIENT: _unregister, R.CHECK_CLIENT_CONFIG: _check_client,
    R.GET_CONSUMER_LIST_BY_GROUP: _fields(SUB_OR_GET, groups=_both),
    R.CONSUMER_SEND_MSG_BACK: _fields(SUB, groups=_group),
    R.QUERY_CONSUMER_OFFSET: _offset(SUB_OR_GET), R.UPDATE_CONSUMER_OFFSET: _offset(SUB_OR_UPDATE),
    R.LOCK_BATCH_MQ: _locks, R.UNLOCK_BATCH_MQ: _locks,
    R.QUERY_ASSIGNMENT: _assignment(SUB), R.SET_MESSAGE_REQUEST_MODE: _assignment(UPDATE),
    R.QUERY_MESSAGE: _fields(SUB_OR_GET, topics=_topic),
    R.VIEW_MESSAGE_BY_ID: _fields(SUB_OR_GET, topics=_topic),
    R.SEARCH_OFFSET_BY_TIMESTAMP: _fields(SUB_OR_GET, topics=_topic),
    R.GET_MAX_OFFSET: _fields(SUB_OR_GET, topics=_topic), R.GET_MIN_OFFSET: _fields(SUB_OR_GET, topics=_topic),
    R.GET_EARLIEST_MSG_STORETIME: _fields(SUB_OR_GET, topics=_topic),
    # topics and groups
    R.UPDATE_AND_CREATE_TOPIC: _fields(CREATE, topics=_topic),
    R.UPDATE_AND_CREATE_STATIC_TOPIC: _fields(CREATE, topics=_topic),
    R.UPDATE_AND_CREATE_TOPIC_LIST: _body_names("topicConfigList", "topicName", topic, CREATE),
    R.DELETE_TOPIC_IN_BROKER: _fields(DELETE, topics=_topic),
    R.GET_TOPIC_CONFIG: _fields(GET, topics=_topic), R.GET_TOPIC_STATS_INFO: _fields(GET, topics=_topic),
    R.QUERY_TOPIC_CONSUME_BY_WHO: _fields(GET, topics=_topic),
    R.GET_ALL_TOPIC_CONFIG: _on_every(ResourceType.TOPIC, LIST | GET),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _body_names("", "groupName", group, CREATE),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _body_names("groupConfigList", "groupName", group, CREATE),
    R.DELETE_SUBSCRIPTIONGROUP: _fields(DELETE, groups=("groupName",)),
    # consumers read the maximum number of retries
    R.GET_SUBSCRIPTIONGROUP_CONFIG: _fields(SUB_OR_GET, groups=_group),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _on_every(ResourceType.GROUP, LIST | GET),
    R.GET_CONSUMER_CONNECTION_LIST: _fields(GET, groups=_both),
    R.GET_CONSUMER_RUNNING_INFO: _fields(GET, groups=_both),
    R.CONSUME_MESSAGE_DIRECTLY: _fields(SUB, topics=_topic, groups=_both),
    R.GET_CONSUME_STATS: _fields(GET, topics=("topic", "topicList"), groups=_both, split=";"),
    R.QUERY_CONSUME_TIME_SPAN: _fields(GET, topics=_topic, groups=_group),
    R.QUERY_CORRECTION_OFFSET: _fields(GET, topics=_topic, groups=("filterGroups", "compareGroup"), split=","),
    R.QUERY_TOPICS_BY_CONSUMER: _fields(GET, groups=_group),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: _fields(GET, topics=_topic, groups=_group),
    R.QUERY_CONSUME_QUEUE: _fields(GET, topics=_topic, groups=_both),
    R.INVOKE_BROKER_TO_RESET_OFFSET: _fields(UPDATE, topics=_topic, groups=_group),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields(GET, topics=_topic, groups=_group),
    R.CLONE_GROUP_OFFSET: _fields(UPDATE, topics=_topic, groups=("destGroup",)),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: _fields(UPDATE, topics=_topic, groups=_group),
    R.RESUME_CHECK_HALF_MESSAGE: _fields(UPDATE, topics=_topic),
    R.AEROBEE_REMOVE_OFFSETS: _fields(UPDATE, topics=_topic, groups=_group),
    R.AEROBEE_LIST_TRANSACTIONS: _READ_CLUSTER, R.AEROBEE_RESOLVE_TRANSACTION: _CHANGE_CLUSTER,
    R.AEROBEE_LIST_POPS: _READ_CLUSTER, R.AEROBEE_LIST_TIMERS: _READ_CLUSTER,
    R.AEROBEE_RESCHEDULE_TIMER: _CHANGE_CLUSTER, R.AEROBEE_LIST_LOCKS: _READ_CLUSTER,
    R.AEROBEE_CREATE_SCHEDULE: _create_schedule, R.AEROBEE_LIST_SCHEDULES: _list_schedules,
    R.AEROBEE_CHANGE_SCHEDULE: _CHANGE_CLUSTER,
    # a broker
    R.UPDATE_BROKER_CONFIG: _CHANGE_CLUSTER, R.GET_BROKER_CONFIG: _READ_CLUSTER,
    R.GET_BROKER_RUNTIME_INFO: _READ_CLUSTER, R.GET_PRODUCER_CONNECTION_LIST: _READ_CLUSTER,
    R.GET_ALL_PRODUCER_INFO: _READ_CLUSTER, R.VIEW_BROKER_STATS_DATA: _READ_CLUSTER,
    R.GET_BROKER_CONSUME_STATS: _READ_CLUSTER, R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _READ_CLUSTER,
    R.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE_CLUSTER, R.CLEAN_UNUSED_TOPIC: _CHANGE_CLUSTER,
    R.DELETE_EXPIRED_COMMITLOG: _CHANGE_CLUSTER, R.GET_COLD_DATA_FLOW_CTR_INFO: _READ_CLUSTER,
    R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER, R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER,
    R.SET_COMMITLOG_READ_MODE: _CHANGE_CLUSTER, R.SWITCH_TIMER_ENGINE: _CHANGE_CLUSTER,
    R.GET_ALL_CONSUMER_OFFSET: _READ_CLUSTER, R.GET_ALL_DELAY_OFFSET: _READ_CLUSTER,
    R.GET_TIMER_CHECK_POINT: _READ_CLUSTER, R.GET_TIMER_METRICS: _READ_CLUSTER,
    R.GET_ALL_MESSAGE_REQUEST_MODE: _READ_CLUSTER, R.GET_BROKER_HA_STATUS: _READ_CLUSTER,
    R.GET_BROKER_EPOCH_CACHE: _READ_CLUSTER, R.EXCHANGE_BROKER_HA_INFO: _CHANGE_CLUSTER,
    R.NOTIFY_BROKER_ROLE_CHANGED: _CHANGE_CLUSTER, R.NOTIFY_MIN_BROKER_ID_CHANGE: _CHANGE_CLUSTER,
    R.RESET_MASTER_FLUSH_OFFSET: _CHANGE_CLUSTER,
    # a NameServer
    R.PUT_KV_CONFIG: _CHANGE_CLUSTER, R.GET_KV_CONFIG: _READ_CLUSTER, R.DELETE_KV_CONFIG: _CHANGE_CLUSTER,
    R.GET_KVLIST_BY_NAMESPACE: _READ_CLUSTER, R.REGISTER_BROKER: _CHANGE_CLUSTER,
    R.UNREGISTER_BROKER: _CHANGE_CLUSTER, R.QUERY_DATA_VERSION: _READ_CLUSTER, R.BROKER_HEARTBEAT: _CHANGE_CLUSTER,
    R.GET_BROKER_MEMBER_GROUP: _READ_CLUSTER, R.GET_BROKER_CLUSTER_INFO: _READ_CLUSTER,
    R.WIPE_WRITE_PERM_OF_BROKER: _CHANGE_CLUSTER, R.ADD_WRITE_PERM_OF_BROKER: _CHANGE_CLUSTER,
    R.DELETE_TOPIC_IN_NAMESRV: _CHANGE_CLUSTER, R.REGISTER_TOPIC_IN_NAMESRV: _CHANGE_CLUSTER,
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _on_every(ResourceType.TOPIC, LIST),
    R.GET_TOPICS_BY_CLUSTER: _on_every(ResourceType.TOPIC, LIST),
    R.GET_SYSTEM_TOPIC_LIST_FROM_NS: _on_every(ResourceType.TOPIC, LIST),
    R.GET_UNIT_TOPIC_LIST: _on_every(ResourceType.TOPIC, LIST),
    R.GET_HAS_UNIT_SUB_TOPIC_LIST: _on_every(ResourceType.TOPIC, LIST),
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _on_every(ResourceType.TOPIC, LIST),
    R.UPDATE_NAMESRV_CONFIG: _CHANGE_CLUSTER, R.GET_NAMESRV_CONFIG: _READ_CLUSTER,
    # users and permissions
    **dict.fromkeys((R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_DELETE_USER), _CHANGE_CLUSTER),
    **dict.fromkeys((R.AUTH_CREATE_ACL, R.AUTH_UPDATE_ACL, R.AUTH_DELETE_ACL), _CHANGE_CLUSTER),
    **dict.fromkeys((R.AUTH_GET_USER, R.AUTH_LIST_USER, R.AUTH_GET_ACL, R.AUTH_LIST_ACL), _READ_CLUSTER),
}  # fmt: skip

# In RocketMQ 5.5.0 every authenticated user may make these requests (tested with a user without any policy).
STRICTER = frozenset(
    {
        R.GET_ALL_TOPIC_CONFIG, R.UPDATE_BROKER_CONFIG, R.GET_BROKER_CONFIG, R.GET_BROKER_RUNTIME_INFO,
        R.GET_ALL_CONSUMER_OFFSET, R.GET_ALL_DELAY_OFFSET, R.CHECK_CLIENT_CONFIG, R.GET_TIMER_CHECK_POINT,
        R.GET_TIMER_METRICS, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, R.CLEAN_EXPIRED_CONSUMEQUEUE,
        R.CLEAN_UNUSED_TOPIC, R.DELETE_EXPIRED_COMMITLOG, R.LITE_PULL_MESSAGE, R.QUERY_ASSIGNMENT,
        R.SET_MESSAGE_REQUEST_MODE, R.GET_ALL_MESSAGE_REQUEST_MODE, R.UPDATE_AND_CREATE_STATIC_TOPIC,
        R.GET_BROKER_HA_STATUS, R.GET_BROKER_EPOCH_CACHE, R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, R.GET_COLD_DATA_FLOW_CTR_INFO, R.SET_COMMITLOG_READ_MODE,
        R.SWITCH_TIMER_ENGINE, R.BATCH_ACK_MESSAGE,
    }
)  # fmt: skip
