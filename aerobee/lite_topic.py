"""Names of lite topics (RIP-83): sub-topics of a topic whose message.type is LITE. Core.

A message with the property __LITE_TOPIC = `room42` in topic `chat` lies in `chat`, and is read from its lite topic's LMQ:

    %LMQ%$chat$room42

A lite topic exists from its first message on. Source: LiteUtil, GrpcValidator.validateLiteTopic (RocketMQ 5.5.0).
"""

from __future__ import annotations

import re

from aerobee.system_names import LMQ_PREFIX

SEPARATOR = "$"
LITE_PREFIX = LMQ_PREFIX + SEPARATOR
LITE_TOPIC_BYTES_MAX = 64  # maxLiteTopicSize of RocketMQ's proxy
_LEGAL = re.compile(r"[a-zA-Z0-9_-]+\Z")


def lite_topic_fault(lite_topic: str) -> str:
    """Why this is not a lite topic's name, in RocketMQ's words; "" for one that is."""
    if not lite_topic.strip():
        return "lite topic cannot be the char sequence of whitespace"
    if len(lite_topic.encode(errors="surrogateescape")) > LITE_TOPIC_BYTES_MAX:
        return f"lite topic exceed the max size {LITE_TOPIC_BYTES_MAX}"
    if not _LEGAL.match(lite_topic):
        return "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"
    return ""


def lite_queue(parent: str, lite_topic: str) -> str:
    """The LMQ of a lite topic."""
    return f"{LITE_PREFIX}{parent}{SEPARATOR}{lite_topic}"


def split_lite_queue(lmq: str) -> tuple[str, str] | None:
    """(topic, lite topic) of a lite topic's LMQ; None for other names."""
    if not lmq.startswith(LITE_PREFIX):
        return None
    parent, separator, lite_topic = lmq[len(LITE_PREFIX) :].partition(SEPARATOR)
    return (parent, lite_topic) if parent and separator and not lite_topic_fault(lite_topic) else None
