"""SubscriptionData: the subscription of a consumer group to a topic. Source: SubscriptionData,
FilterAPI.buildSubscriptionData.

The broker compares hashes (`codeSet` with the tags code of a queue entry), the client compares texts. The hashes are
computed from the tags here: the C++ client sends zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.message import java_hash
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields

SUBSCRIBE_ALL = "*"
EXPRESSION_CHARS_MAX = (
    16 * 1024
)  # length of tags or SQL92; some thousand tags fit. A million tags would block a broker's loop for seconds
TYPE_TAG = "TAG"
TYPE_SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """`tags_set` and `code_set` are empty when every message matches. `sub_version` grows with each change."""

    topic: str
    sub_string: str = SUBSCRIBE_ALL
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    sub_version: int = 0
    expression_type: str = TYPE_TAG
    class_filter_mode: bool = False

    @classmethod
    def parse(
        cls, topic: str, expression: str | None, *, expression_type: str = TYPE_TAG, sub_version: int = 0
    ) -> SubscriptionData:
        """Build from `*`, `TagA || TagB` or, with TYPE_SQL92, an expression that stays as it is.

        An empty text, None, and a text of only bars and blanks match every message. Raises MalformedFrame
        when it is longer than EXPRESSION_CHARS_MAX.
        """
        text = check_expression(topic, expression or SUBSCRIBE_ALL)
        if expression_type != TYPE_TAG:
            return cls(topic, text, (), (), sub_version, expression_type)
        tags = parse_tags(text)
        return cls(topic, text if tags else SUBSCRIBE_ALL, tags, _codes(tags), sub_version)

    @property
    def is_tag_filter(self) -> bool:
        """False for SQL92 expressions."""
        return self.expression_type == TYPE_TAG

    @property
    def tag_codes(self) -> frozenset[int] | None:
        """The tag hashes that match; None when every message matches or SQL92 decides."""
        return frozenset(self.code_set) if self.code_set and self.is_tag_filter else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": list(self.code_set),
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": list(self.tags_set),
            "topic": self.topic,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> SubscriptionData:
        expression_type = json_fields.text(fields, "expressionType", TYPE_TAG) or TYPE_TAG
        topic = json_fields.text(fields, "topic")
        sub_string = check_expression(topic, json_fields.text(fields, "subString", SUBSCRIBE_ALL))
        tags: tuple[str, ...] = ()
        if expression_type == TYPE_TAG:
            # Java stores tags and codes in hash sets: the received set determines the order, the expression
            # the content.
            tags = parse_tags(sub_string)
            sent = json_fields.texts(fields, "tagsSet")
            tags = sent if sorted(sent) == sorted(tags) else tags
        return cls(
            topic,
            sub_string,
            tags,
            _codes(tags),
            json_fields.integer(fields, "subVersion"),
            expression_type,
            json_fields.boolean(fields, "classFilterMode"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> SubscriptionData:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_object(body, "SubscriptionData"))


def check_expression(topic: str, text: str) -> str:
    """Return the expression. Raises MalformedFrame when it is too long."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise MalformedFrame(
            f"the expression for topic {topic[:80]} has {len(text)} characters, at most {EXPRESSION_CHARS_MAX} are read"
        )
    return text


def parse_tags(expression: str) -> tuple[str, ...]:
    """Return the tags of `TagA || TagB`, each once, in order; () when every message matches."""
    if expression.strip() in ("", SUBSCRIBE_ALL):
        return ()
    return tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))


def _codes(tags: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(java_hash(tag) for tag in tags))
