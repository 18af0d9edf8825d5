"""Splits a topic table into parts that each fit one registration request. Core.

Follows enableSplitRegistration and splitRegistrationSize (RocketMQ): each part is a separate registration, with a
separate data version, because a NameServer ignores topics with a known version. Here a table is split whether that is
set or not when it has more than PART_TOPICS_MAX topics or PART_BYTES_MAX bytes: a registration larger than a frame is
refused whole, and after two minutes the broker's topics are gone.

Invariants: the last part has the table's own version, so that a query for the version (322) finds it; the first part
has at least two topics if the table has, because a NameServer refuses a first registration with one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from aerobee.errors import MalformedFrame
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.register_broker import check_topic
from aerobee.remoting.body.topic_config import TopicConfig

PART_TOPICS_MAX = 2_000  # some 20 ms of a nameserver's loop
PART_BYTES_MAX = 4 * 1024 * 1024  # a quarter of the largest frame
_TOPIC_BYTES = 192  # size of a topic's JSON without its name, which occurs twice, and its attributes


def well_formed(table: Mapping[str, TopicConfig]) -> tuple[Mapping[str, TopicConfig], list[str]]:
    """Return the topics that a NameServer accepts, and the reasons for leaving out others."""
    left_out = []
    for config in table.values():
        try:
            check_topic(config)
        except MalformedFrame as error:
            left_out.append((config.topic_name, str(error)))
    if not left_out:
        return table, []
    bad = {name for name, _ in left_out}
    return {name: config for name, config in table.items() if name not in bad}, [text for _, text in left_out]


def parts_of(
    table: Mapping[str, TopicConfig], version: DataVersion, count_max: int = PART_TOPICS_MAX
) -> list[tuple[dict[str, TopicConfig], DataVersion]]:
    """Return the parts in the order in which they are sent; one part, possibly empty, for a small table."""
    parts: list[dict[str, TopicConfig]] = [{}]
    size = 0
    count_max = max(2, min(count_max, PART_TOPICS_MAX))
    for name, config in table.items():
        cost = _TOPIC_BYTES + 8 * len(name) + 8 * sum(map(len, _texts(config.attributes)))
        if len(parts[-1]) >= 2 and (len(parts[-1]) >= count_max or size + cost > PART_BYTES_MAX):
            parts.append({})
            size = 0
        parts[-1][name] = config
        size += cost
    last = len(parts) - 1
    return [
        (
            part,
            version if at == last else dataclasses.replace(version, timestamp=version.timestamp - last + at),
        )
        for at, part in enumerate(parts)
    ]


def _texts(attributes: Mapping[str, str]) -> Iterable[str]:
    for key, value in attributes.items():
        yield key
        yield value
