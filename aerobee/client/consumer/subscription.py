"""Subscription of a group to a topic: `*`, `TagA || TagB`, or an SQL92 expression. Pure.

Source: FilterAPI, SubscriptionData. The broker filters tags by hash, so the client filters again by exact text.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.errors import UsageError
from aerobee.message import check_topic_name
from aerobee.remoting.body.subscription import SubscriptionData

SQL_PREFIX = "sql:"


class Sql(str):
    """An SQL92 expression over message properties, where a subscription takes tags: `Sql("price > 5")`.

    The text `sql:price > 5` is equivalent. Brokers evaluate it (enablePropertyFilter); they refuse an invalid
    expression and state the column of the error.
    """

    __slots__ = ()

    def __new__(cls, expression: str) -> Sql:
        return super().__new__(
            cls, expression if expression.startswith(SQL_PREFIX) else SQL_PREFIX + expression
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a group. `tags` is empty when every message matches; `version` grows with each change."""

    topic: str
    expression: str
    tags: frozenset[str]
    version: int
    expression_type: str = "TAG"

    def wants(self, tag: str | None) -> bool:
        """True for a message that matches the subscription."""
        return not self.tags or tag in self.tags

    def to_data(self) -> SubscriptionData:
        """The subscription as a heartbeat encodes it."""
        return SubscriptionData.parse(
            self.topic, self.expression, expression_type=self.expression_type, sub_version=self.version
        )


def subscribe(topic: str, expression: str, version: int) -> Subscription:
    """Parse an expression. `sql:` in front makes it SQL92, otherwise it is `*` or tags joined by `||`.

    Raises UsageError for an illegal topic, an expression that names no tag, and an empty one of SQL92.
    """
    check_topic_name(topic)
    text = expression.strip()
    if text.startswith(SQL_PREFIX):
        condition = text.removeprefix(SQL_PREFIX).strip()
        if not condition:
            raise UsageError(f'the SQL92 expression for topic {topic} is empty: write Sql("price > 5")')
        return Subscription(topic, condition, frozenset(), version, "SQL92")
    if text in ("", "*"):
        return Subscription(topic, "*", frozenset(), version)
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags):
        raise UsageError(
            f"subscription {expression!r} of topic {topic} names an empty tag; write '*' or 'TagA || TagB'"
        )
    return Subscription(topic, text, frozenset(tags), version)
