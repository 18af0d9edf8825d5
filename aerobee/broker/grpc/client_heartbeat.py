"""Converts a gRPC client's settings to a remoting heartbeat, whose handler checks and bounds memberships. Core.

A producer has no group in gRPC: the heartbeat names each topic that it publishes to as a producer group. A consumer is
registered with its group and subscriptions.
"""

from __future__ import annotations

from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.errors import MalformedFrame
from aerobee.grpc.proto import messages as pb
from aerobee.remoting.body.heartbeat import (
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    ConsumerData,
    HeartbeatData,
    ProducerData,
)
from aerobee.remoting.body.subscription import TYPE_SQL92, TYPE_TAG, SubscriptionData

PUSHED = frozenset({pb.PUSH_CONSUMER, pb.LITE_PUSH_CONSUMER})
LITE_TYPES = frozenset({pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER})
TOPICS_MAX = 1_000  # that one producer or consumer names, as clientGroupsMax and groupSubscriptionsMax


def heartbeat_of(client_id: str, settings: pb.Settings, now_ms: int) -> HeartbeatData:
    """The heartbeat of a client with these settings. Raises RpcRefused for names that are not legal."""
    if settings.HasField("publishing"):
        if len(settings.publishing.topics) > TOPICS_MAX:
            text = (
                f"a producer names {len(settings.publishing.topics)} topics, at most {TOPICS_MAX} are allowed"
            )
            raise RpcRefused(pb.BAD_REQUEST, text)
        topics = dict.fromkeys(topic_name(topic) for topic in settings.publishing.topics)
        return HeartbeatData(client_id, producer_data_set=tuple(ProducerData(topic) for topic in topics))
    subscription = settings.subscription
    if len(subscription.subscriptions) > TOPICS_MAX:
        text = f"a consumer names {len(subscription.subscriptions)} topics, at most {TOPICS_MAX} are allowed"
        raise RpcRefused(pb.BAD_REQUEST, text)
    consumer = ConsumerData(
        group_name(subscription.group),
        consume_type=CONSUME_PASSIVELY if settings.client_type in PUSHED else CONSUME_ACTIVELY,
        subscription_data_set=tuple(subscription_of(entry, now_ms) for entry in subscription.subscriptions),
    )
    return HeartbeatData(client_id, consumer_data_set=(consumer,))


def subscription_of(entry: pb.SubscriptionEntry, now_ms: int) -> SubscriptionData:
    """One subscribed topic with its filter. Raises RpcRefused."""
    topic, expression = topic_name(entry.topic), entry.expression.expression
    is_sql = entry.expression.type == pb.SQL
    if is_sql and not expression.strip():
        raise RpcRefused(pb.ILLEGAL_FILTER_EXPRESSION, "the SQL92 expression is empty")
    kind = TYPE_SQL92 if is_sql else TYPE_TAG
    try:
        return SubscriptionData.parse(topic, expression, expression_type=kind, sub_version=now_ms)
    except MalformedFrame as error:
        raise RpcRefused(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
