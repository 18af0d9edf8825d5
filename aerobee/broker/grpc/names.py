"""Validates topic and group names in RPCs before any look-up. Core.

Source: GrpcValidator and TopicValidator (RocketMQ 5.5.0). As there, `resource_namespace` is ignored.
"""

from __future__ import annotations

import re

from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.grpc.proto import messages as pb
from aerobee.message import GROUP_CHARS_MAX, RETRY_PREFIX, TOPIC_BYTES_MAX
from aerobee.system_names import (
    AUTO_CREATE_TEMPLATE,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_PREFIX,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)

LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
SHOWN_CHARS_MAX = 200
ECHOED_CHARS_MAX = 255  # of a namespace or a host that an answer repeats for every queue
SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TEMPLATE,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRACE_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        "CHECKPOINT_TOPIC",
    }
)


def topic_name(topic: pb.Resource) -> str:
    """The topic's name. Raises RpcRefused (ILLEGAL_TOPIC)."""
    name = topic.name
    if not name.strip():
        raise RpcRefused(pb.ILLEGAL_TOPIC, "The specified topic is blank")
    if len(name) > TOPIC_BYTES_MAX and not name.startswith(RETRY_PREFIX):
        text = f"The specified topic is longer than topic max length {TOPIC_BYTES_MAX}."
        raise RpcRefused(pb.ILLEGAL_TOPIC, text)
    if not LEGAL.match(name):
        text = (
            f"The specified topic[{name[:SHOWN_CHARS_MAX]}] contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$"
        )
        raise RpcRefused(pb.ILLEGAL_TOPIC, text)
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX):
        raise RpcRefused(pb.ILLEGAL_TOPIC, "cannot access system topic")
    return name


def echoed_topic(topic: pb.Resource) -> pb.Resource:
    """The topic as an answer repeats it for every queue: bounded, and without fields that are not known. Raises RpcRefused."""
    if len(topic.resource_namespace) > ECHOED_CHARS_MAX:
        text = f"the namespace has {len(topic.resource_namespace)} characters, at most {ECHOED_CHARS_MAX} are allowed"
        raise RpcRefused(pb.ILLEGAL_TOPIC, text)
    return pb.Resource(resource_namespace=topic.resource_namespace, name=topic_name(topic))


def group_name(group: pb.Resource) -> str:
    """The consumer group's name. Raises RpcRefused (ILLEGAL_CONSUMER_GROUP)."""
    name = group.name
    if not name.strip():
        raise RpcRefused(pb.ILLEGAL_CONSUMER_GROUP, "the specified group is blank")
    if len(name) > GROUP_CHARS_MAX:
        text = f"the specified group is longer than group max length {GROUP_CHARS_MAX}."
        raise RpcRefused(pb.ILLEGAL_CONSUMER_GROUP, text)
    if not LEGAL.match(name):
        text = (
            f"the specified group[{name[:SHOWN_CHARS_MAX]}] contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$"
        )
        raise RpcRefused(pb.ILLEGAL_CONSUMER_GROUP, text)
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise RpcRefused(pb.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name
