"""Topics of messages that came from a master which was lost before its table of topics was copied again: nobody could read what
it had acknowledged.

Which they are says TopicTable.copied_to: of each message before that place of the log the topic is known or was deleted. Slaves
keep the queues of deleted topics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aerobee.broker.queue_mappings import QueueMappings
from aerobee.broker.topic_table import TopicTable
from aerobee.store.queue_table import AnyQueue

log = logging.getLogger(__name__)


def make_missed_topics(
    topics: TopicTable, mappings: QueueMappings, queues: Mapping[tuple[str, int], AnyQueue]
) -> None:
    """Make such topics again, and such queues of topics that are known; nothing at a broker that copied from nobody.

    A topic gets the queues up to the last that has messages: how many there were is not known. A sender to one behind them is
    refused and asks for the route. Static topics and the broker's own are left as they are.
    """
    copied_to = topics.copied_to
    if copied_to is None:
        return
    made: dict[str, int] = {}
    grown: dict[str, int] = {}
    for (topic, queue_id), queue in list(queues.items()):
        known = topics.get(topic)
        if known is not None and queue_id < known.read_queue_nums:
            continue
        last = queue.entry(queue.max_offset - 1) if queue.max_offset else None
        if not isinstance(last, tuple) or last[0] < copied_to:
            continue
        if known is None:
            made[topic] = max(made.get(topic, 0), queue_id + 1)
        elif mappings.get(topic) is None and not topics.is_system(topic):
            grown[topic] = max(grown.get(topic, 0), queue_id + 1)
    for topic, count in grown.items():
        topics.grow_internal(topic, count)
        log.warning("the master was lost before it was copied that %s has more queues: %d now", topic, count)
    again = topics.make_again(made)
    if again:
        log.warning(
            "the master was lost before its newest topics were copied: %s have messages and are made again with as many "
            "queues as have some and the default settings; set what else they had (aerobee topic update)",
            ", ".join(sorted(again)),
        )
