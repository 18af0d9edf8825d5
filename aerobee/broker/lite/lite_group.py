"""Settings of a lite group: a consumer group with the attribute lite.bind.topic. Core.

It consumes lite topics of that topic alone. Source: SubscriptionGroupAttributes, LiteMetadataUtil (RocketMQ 5.5.0).
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.protocol import (
    LITE_BIND_TOPIC,
    LITE_EXCLUSIVE,
    LITE_MODEL,
    LITE_QUOTA,
    LITE_RESET_ON_EXCLUSION,
    LITE_RESET_ON_UNSUBSCRIBE,
    LITE_WILDCARD,
)

QUOTA = 2_000  # lite topics of one client


@dataclass(frozen=True, slots=True)
class LiteGroup:
    """`quota` bounds the lite topics of one client. `is_exclusive`: a lite topic has one subscriber, the newest."""

    name: str
    topic: str
    quota: int
    is_exclusive: bool
    is_wildcard: bool
    resets_on_exclusion: bool
    resets_on_unsubscribe: bool


def lite_group(config: SubscriptionGroupConfig | None) -> LiteGroup | None:
    """The lite settings of a group; None for a group that consumes no lite topics."""
    topic = "" if config is None else config.attributes.get(LITE_BIND_TOPIC, "")
    if config is None or not topic:
        return None
    attributes = config.attributes
    quota = attributes.get(LITE_QUOTA, "")
    return LiteGroup(
        name=config.group_name,
        topic=topic,
        quota=int(quota) if quota.isdecimal() and len(quota) < 10 else QUOTA,
        is_exclusive=attributes.get(LITE_MODEL) == LITE_EXCLUSIVE,
        is_wildcard=bool(attributes.get(LITE_WILDCARD)),
        resets_on_exclusion=attributes.get(LITE_RESET_ON_EXCLUSION) == "true",
        resets_on_unsubscribe=attributes.get(LITE_RESET_ON_UNSUBSCRIBE) == "true",
    )
