"""Settings of a gRPC client: reads those that the client sends, and creates those that the broker returns. Core.

Source: GrpcClientSettingsManager (RocketMQ 5.5.0). A client's fields are echoed; those that the broker decides replace them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from aerobee.broker.grpc.times import set_ms
from aerobee.broker.lite.lite_group import QUOTA, lite_group
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import LITE_TOPIC_BYTES_MAX
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig

PRODUCER_ATTEMPTS, PRODUCER_BACKOFF_MS, PRODUCER_BACKOFF_MS_MAX = 3, 10, 1_000
RECEIVE_BATCH_SIZE = 32  # grpcClientConsumerLongPollingBatchSize
LONG_POLLING_MS = 20_000  # grpcClientConsumerMaxLongPollingTimeoutMillis
# CustomizedRetryPolicy and ExponentialRetryPolicy (RocketMQ).
STEPS_MS = tuple(
    step * 1_000
    for step in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
)
BACKOFF_MS, BACKOFF_MS_MAX, BACKOFF_FACTOR = 5_000, 7_200_000, 2.0
STEPS_MAX = 1_000


def merged_settings(
    sent: pb.Settings, *, body_bytes_max: int, group: SubscriptionGroupConfig | None
) -> pb.Settings:
    """The settings that the broker returns for the client's settings `sent`. `group` is a consumer's; None for a
    producer.
    """
    merged = pb.Settings()
    merged.CopyFrom(sent)
    merged.metric.on = False
    if group is None:
        merged.publishing.max_body_size = body_bytes_max
        merged.publishing.validate_message_type = True
        policy = merged.backoff_policy
        policy.Clear()
        policy.max_attempts = PRODUCER_ATTEMPTS
        set_ms(policy.exponential_backoff.initial, PRODUCER_BACKOFF_MS)
        set_ms(policy.exponential_backoff.max, PRODUCER_BACKOFF_MS_MAX)
        policy.exponential_backoff.multiplier = 2.0
        return merged
    subscription = merged.subscription
    subscription.fifo = group.consume_message_orderly
    subscription.receive_batch_size = RECEIVE_BATCH_SIZE
    set_ms(subscription.long_polling_timeout, LONG_POLLING_MS)
    lite = lite_group(group)
    subscription.lite_subscription_quota = QUOTA if lite is None else lite.quota
    subscription.max_lite_topic_size = LITE_TOPIC_BYTES_MAX
    merged.backoff_policy.CopyFrom(consumer_backoff(group))
    return merged


def consumer_backoff(group: SubscriptionGroupConfig) -> pb.RetryPolicy:
    """How long the group's messages wait for their next attempt."""
    policy = pb.RetryPolicy(max_attempts=group.retry_max_times + 1)
    chosen = group.group_retry_policy
    if str(chosen.get("type", "")).upper() == "EXPONENTIAL":
        found = chosen.get("exponentialRetryPolicy")
        values = found if isinstance(found, dict) else {}
        backoff = policy.exponential_backoff
        set_ms(backoff.initial, _positive(values, "initial", BACKOFF_MS))
        set_ms(backoff.max, _positive(values, "max", BACKOFF_MS_MAX))
        backoff.multiplier = float(_positive(values, "multiplier", int(BACKOFF_FACTOR)))
        return policy
    found = chosen.get("customizedRetryPolicy")
    steps = found.get("next") if isinstance(found, dict) else None
    if not (isinstance(steps, list) and 0 < len(steps) <= STEPS_MAX and all(_is_ms(step) for step in steps)):
        steps = list(STEPS_MS)
    for step in steps:
        set_ms(policy.customized_backoff.next.add(), step)
    return policy


def _is_ms(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < 1 << 40


def _positive(values: Mapping[str, Any], name: str, default: int) -> int:
    value = values.get(name)
    return value if _is_ms(value) and value > 0 else default
