"""What needs attention in the cluster, as a list for the overview. Core: the snapshot's rows in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aerobee.monitoring.lag_state import LagState
from aerobee.words import plural

DISK_WARN = 0.85  # RocketMQ's brokers delete files early from 0.75 to 0.85 on, and refuse messages above 0.90
PROBLEMS_MAX = 50  # on the overview
WARNINGS = frozenset({LagState.WARN.value, LagState.REWIND.value})  # the group consumes


def problems(
    brokers: Iterable[Mapping[str, Any]], groups: Iterable[Mapping[str, Any]], dead_letters: Mapping[str, int]
) -> list[dict[str, str]]:
    """Findings, brokers first: `what`, `text`, `level` (bad or warn), and the `page` with its parameter `name` that shows more.

    `groups` are those whose lag state is neither OK nor UNKNOWN, `dead_letters` counts the messages of a group that are not redriven.
    """
    found = [*_brokers(list(brokers))]
    found += [
        _finding(
            "Lag",
            f"group {row['name']}: {row['state']}: {row['reason']}",
            "group",
            row["name"],
            "warn" if row["state"] in WARNINGS else "bad",
        )
        for row in groups
    ]
    found += [
        _finding("Dead letters", f"group {group}: {plural(count, 'message')} not redriven", "dlq", group)
        for group, count in dead_letters.items()
        if count
    ]
    return found


def _brokers(rows: list[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    masters = {row["name"] for row in rows if row["role"] == "master"}
    for name in sorted({row["name"] for row in rows} - masters):
        yield _finding(
            "Broker", f"broker group {name} has no master: producers cannot send to it", "topology", ""
        )
    for row in rows:
        label = f"{row['name']} ({row['role']}) at {row['address']}"
        if row.get("error"):
            yield _finding("Broker", f"{label}: {row['error']}", "broker", row["address"])
            continue
        disk = row.get("disk")
        if disk is not None and disk >= DISK_WARN:
            yield _finding("Disk", f"{label}: {disk:.0%} of the disk is used", "broker", row["address"])
        ha = row.get("ha", {})
        if ha.get("ha_trouble"):
            yield _finding(
                "Replica", f"{label} does not follow its master: {ha['ha_trouble']}", "topology", ""
            )
        if ha.get("ha_missing"):
            yield _finding(
                "Replica", f"{label}: in-sync replicas {ha['ha_missing']} are not connected", "topology", ""
            )
        for replica in ha.get("ha_replicas", "").split(";"):
            if "not in sync" in replica:
                yield _finding("Replica", f"{label}: {replica}", "topology", "")


def _finding(what: str, text: str, page: str, name: str, level: str = "bad") -> dict[str, str]:
    return {"what": what, "text": text, "page": page, "name": name, "level": level}
