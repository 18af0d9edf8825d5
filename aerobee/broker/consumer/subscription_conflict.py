"""Detects members of one group with different subscriptions, which lose messages silently with RocketMQ.

All members of a group share one subscription table at the broker, and the last heartbeat wins. So when one member
subscribes to TagA and another to TagB, each receives messages of the other's tag, drops them, and the offset advances.
The broker stores each member's subscriptions and compares them. Equivalent expressions (`A||B`, `B || A`) are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aerobee.message import RETRY_PREFIX
from aerobee.remoting.body.subscription import SUBSCRIBE_ALL, SubscriptionData

NOTHING = "nothing"

Wanted = Mapping[str, str]  # topic -> normalized expression of a member


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two members that differ on a topic. `expression` is NOTHING for a member without a subscription to the topic."""

    group: str
    topic: str
    client_id: str
    expression: str
    other_client_id: str
    other_expression: str

    def __str__(self) -> str:
        return (
            f"members of group {self.group} differ on topic {self.topic}: client {self.client_id} subscribes to "
            f"{self.expression}, client {self.other_client_id} to {self.other_expression}. All members of a group "
            "must subscribe alike, or messages are lost to them: give each kind a separate group"
        )

    def to_dict(self) -> dict[str, str]:
        """The form in the answer to GET_CONSUMER_CONNECTION_LIST."""
        return {
            "topic": self.topic,
            "clientId": self.client_id,
            "expression": self.expression,
            "otherClientId": self.other_client_id,
            "otherExpression": self.other_expression,
        }


def wanted_of(subscriptions: Iterable[SubscriptionData]) -> Wanted:
    """The subscriptions of a heartbeat, without the group's retry topic."""
    return {item.topic: _spelled(item) for item in subscriptions if not item.topic.startswith(RETRY_PREFIX)}


def _spelled(item: SubscriptionData) -> str:
    if not item.is_tag_filter:
        return f"{item.expression_type} {item.sub_string.strip()}"
    return " || ".join(sorted(item.tags_set)) or SUBSCRIBE_ALL


def conflict_between(
    group: str, client_id: str, wanted: Wanted, others: Iterable[tuple[str, Wanted]]
) -> Conflict | None:
    """The first difference between a member and the others, or None."""
    for other_id, other in others:
        if other == wanted or other_id == client_id:
            continue
        for topic in sorted(wanted.keys() | other.keys()):
            mine, theirs = wanted.get(topic, NOTHING), other.get(topic, NOTHING)
            if mine != theirs:
                return Conflict(group, topic, client_id, mine, other_id, theirs)
    return None
