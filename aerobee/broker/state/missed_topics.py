"""Recreates topics of a lost master whose topic table was not copied again in time: otherwise no consumer could read
its acknowledged messages.

TopicTable.copied_to determines them: the topic of every message before that log offset is known or was deleted. Slaves
of RocketMQ's masters keep the queues of deleted topics; Aerobee's masters report deletions with their log offset
(TopicTable.deleted).
"""

from __future__ import annotations

import logging

from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.topic_table import TopicTable
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)


def make_missed_topics(topics: TopicTable, mappings: QueueMappings, store: MessageStore) -> None:
    """Recreate missed topics, and missed queues of known topics, and give every queue the kind of its topic. Does
    nothing at a broker that copied from no master.

    A topic gets the queues up to the last that has messages: how many there were is not known. A sender to one behind them is
    refused and asks for the route. A topic with batches has `queue.type=BatchCQ`; that of single messages alone does not show.
    Static topics and the broker's own are left as they are. Raises OSError, StoreError.
    """
    copied_to = topics.copied_to
    store.delete_ended_now(topics.deleted)
    settle_kinds(topics, store, store.log.end if copied_to is None else copied_to)
    if copied_to is None:
        return
    made: dict[str, int] = {}
    grown: dict[str, int] = {}
    batch_topics: set[str] = set()
    for (topic, queue_id), queue in list(store.queues.items()):
        known = topics.get(topic)
        has_queue = known is not None and queue_id < known.read_queue_nums
        if known is not None and has_queue and (known.is_batch or not queue.is_batch):
            continue
        last = queue.entry(queue.max_offset - 1) if queue.max_offset else None
        if not isinstance(last, tuple) or last[0] < copied_to:
            continue
        if queue.is_batch:
            batch_topics.add(topic)
        if known is None:
            made[topic] = max(made.get(topic, 0), queue_id + 1)
        elif not has_queue and mappings.get(topic) is None and not topics.is_system(topic):
            grown[topic] = max(grown.get(topic, 0), queue_id + 1)
    for topic, count in grown.items():
        topics.grow_internal(topic, count)
        log.warning("the master was lost before it was copied that %s has more queues: %d now", topic, count)
    again = topics.make_again(made, batch_topics)
    settle_kinds(topics, store, store.log.end)
    if again:
        log.warning(
            "the master was lost before its newest topics were copied: %s have messages and are recreated with as many "
            "queues as have some, the queue type that these have, and the default settings; set what else they had "
            "(aerobee topic update)",
            ", ".join(sorted(again)),
        )


def settle_kinds(topics: TopicTable, store: MessageStore, known_to: int) -> None:
    """Give queues the kind that their topics have, SimpleCQ or BatchCQ; the table is that of the log up to `known_to`.

    The log comes before the table, and records of single messages do not say the kind. Raises OSError, StoreFull.
    """

    def kind_of(topic: str) -> bool | None:
        config = topics.topics.get(topic)
        return None if config is None else config.is_batch

    changed = store.settle_kinds(kind_of, known_to)
    if changed:
        log.warning(
            "queues of %s had another type than their topics and were built again", ", ".join(changed)
        )
