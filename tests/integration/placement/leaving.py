"""The plan of a broker that leaves."""

from __future__ import annotations

from aerobee.placement.plan import TopicChange

LEAVES = TopicChange(topic="away", before={"broker-a": 1}, after={"broker-b": 1})
