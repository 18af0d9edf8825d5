"""Share of keys that move to another queue when a topic's queues change. Core.

A producer sends a key to queue number hash % n of a list: brokers by name, of each its queues by id (SelectMessageQueueByHash and
MQClientInstance.topicRouteData2TopicPublishInfo of RocketMQ, and the same here).
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def queue_list(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """(broker, queue id) in a producer's order."""
    return [(name, queue_id) for name in sorted(counts) for queue_id in range(counts[name])]


def moved_share(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """The share of evenly spread hashes, 0 to 1, that move to another queue. Exact.

    hash % n = i and hash % m = j happen together for one hash in lcm(n, m) when i = j modulo gcd(n, m), and never otherwise.
    """
    old, new = queue_list(before), queue_list(after)
    if not old or not new:
        return 0.0 if old == new else 1.0
    index_of = {queue: index for index, queue in enumerate(new)}
    common = math.gcd(len(old), len(new))
    kept = sum(
        1 for index, queue in enumerate(old) if queue in index_of and (index_of[queue] - index) % common == 0
    )
    return 1.0 - kept / math.lcm(len(old), len(new))
