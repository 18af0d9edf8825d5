"""Splits record batches by topic, for the sink. Core; needs pyarrow."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as compute

from aerobee.spark.entry_codec import TopicRows

TOPICS_MAX = 64  # maximum number of topics of a record batch that is split


def by_topic(batch: Any, first: int, topic: str) -> list[TopicRows]:
    """Split a record batch by topic, from the options or from the column. `first`: number of its first row.

    Rows of a topic stay in their order. Rows without a topic, or with more than TOPICS_MAX topics, are not split.
    """
    numbers = range(first, first + batch.num_rows)
    if topic:
        return [TopicRows(topic, batch, numbers)]
    column = batch.column("topic")
    topics = compute.unique(column).to_pylist()
    if len(topics) > TOPICS_MAX or None in topics:
        return [TopicRows("", batch, numbers)]
    if len(topics) == 1:
        return [TopicRows(topics[0], batch, numbers)]
    parts = []
    for each in topics:
        chosen = compute.indices_nonzero(compute.equal(column, each))
        parts.append(TopicRows(each, batch.take(chosen), [first + row for row in chosen.to_pylist()]))
    return parts
