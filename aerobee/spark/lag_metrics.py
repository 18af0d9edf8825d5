"""Results of the lag job for Prometheus: a file in its text format for node_exporter's textfile collector. Core.

One line per metric and group, with the labels `cluster` and `consumer_group`. Unknown values have no line;
they are never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

GROUPS_MAX = 5_000  # maximum number of groups, the worst first; more would make scrapes slow
# Column of lag_job.groups_of() -> name of the series, help text, factor.
_GAUGES: Mapping[str, tuple[str, str, float]] = {
    "lag": ("messages", "Lag of the group in messages.", 1),
    "retry": ("retry_messages", "Lag of its retry topics in messages.", 1),
    "dead": ("dead_letters", "Dead-letter messages of the group.", 1),
    "lag_ms": ("oldest_seconds", "Lag time: age of the oldest unconsumed message.", 0.001),
    "consume_rate": ("consume_rate", "Consumed messages per second.", 1),
    "produce_rate": ("produce_rate", "Stored messages per second.", 1),
    "drain_s": ("drain_seconds", "Time to drain at the current rates.", 1),
    "retention_s": ("retention_left_seconds", "Time until the oldest unconsumed message may expire.", 1),
    "unknown_queues": ("unknown_queues", "Queues with unknown state.", 1),
}
PREFIX = "aerobee_lag_job_"


def metrics_text(groups: Sequence[Mapping[str, Any]], at_ms: int) -> str:
    """Rows of lag_job.groups_of() as text; `at_ms` is when they were sampled, ms since the epoch."""
    groups = groups[:GROUPS_MAX]
    lines = list(_family("sample_timestamp_seconds", "Time of the last sample.", [(_labels(), at_ms / 1000)]))
    for column, (name, text, factor) in _GAUGES.items():
        found = [
            (_labels(cluster=row["cluster"], consumer_group=row["group"]), row[column] * factor)
            for row in groups
            if row[column] is not None
        ]
        lines += _family(name, text, found)
    states = [
        (_labels(cluster=row["cluster"], consumer_group=row["group"], state=row["state"]), 1)
        for row in groups
    ]
    lines += _family("state", "1 for the state of each group.", states)
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, text: str, samples: Sequence[tuple[str, float]]) -> Iterable[str]:
    if samples:
        yield f"# HELP {PREFIX}{name} {text}"
        yield f"# TYPE {PREFIX}{name} gauge"
    for labels, value in samples:
        yield f"{PREFIX}{name}{labels} {value!r}"


def _labels(**values: str) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
