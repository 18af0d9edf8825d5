"""SendMessage in the native HTTP/2 core: which topics and properties an ordinary request has.

The core and native/src/grpc_send.rs serve those requests for which SendRpc (send_message.py) would do nothing but store one NORMAL
message and answer OK; every other one comes to SendRpc.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from aerobee.broker.fastpath.seam import GrpcSendSettings
from aerobee.broker.grpc.names import topic_name
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.send.message_type import DELAY_PROPERTIES, NORMAL, PLAIN_TYPES
from aerobee.broker.state.topic_table import TopicTable
from aerobee.grpc.proto import messages as pb
from aerobee.message import SHARDING_KEY
from aerobee.property_names import SYSTEM_PROPERTIES
from aerobee.remoting.protocol import TYPE_ATTRIBUTE

if TYPE_CHECKING:
    from aerobee.grpc.call import Event
    from aerobee.grpc.core import Http2Core
    from aerobee.remoting.connection import Connection

# (connection, its core, what it received, monotonic seconds) -> events for the services, messages sent: FastPath.http2_burst
Http2Bursts = Callable[["Connection", "Http2Core", bytes, float], "tuple[list[Event], int]"]


def send_settings(topics: TopicTable, pick: Callable[[int], int] = random.getrandbits) -> GrpcSendSettings:
    """What the fast path needs to serve SendMessage. `pick` returns random bits."""

    def queue_count_of(name: str) -> int:
        topic = topics.get(name)
        try:
            topic_name(pb.Resource(name=name))
        except RpcRefused:
            return 0
        if topic is None or not topic.is_writable:
            return 0
        if topic.attributes.get(TYPE_ATTRIBUTE, NORMAL) not in PLAIN_TYPES:
            return 0
        return max(0, topic.write_queue_nums)

    return GrpcSendSettings(
        queue_count_of=queue_count_of,
        reserved=SYSTEM_PROPERTIES | {SHARDING_KEY, *DELAY_PROPERTIES},
        pick=pick,
    )
