"""Members of one group that ask for different things: RocketMQ's silent loss of messages, made visible.

All members of a group share one subscription table at the broker, and the last heartbeat wins. So when one member subscribes
to TagA and another to TagB, each in turn gets what the other one subscribed to, drops it, and the offset moves on. The
broker keeps what each member said and compares. Texts that mean the same (`A||B`, `B || A`) are no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aerobee.message import RETRY_PREFIX
from aerobee.remoting.body.subscription import SUBSCRIBE_ALL, SubscriptionData

NOTHING = "nothing"

Wanted = Mapping[str, str]  # topic -> what a member asks for, in one spelling


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two members that differ on a topic. `expression` is NOTHING for one that has not subscribed to it."""

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
    """What a heartbeat asks for, without the group's own retry topic."""
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
