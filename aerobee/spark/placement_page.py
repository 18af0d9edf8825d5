"""A placement plan as a self-contained HTML page: the load of each broker before and after, and the changes. Core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

from aerobee.placement.model import RESOURCES
from aerobee.placement.plan import Plan, TopicChange
from aerobee.spark.html_page import (
    cell,
    figure,
    heading,
    html_page,
    label,
    moment,
    number_cell,
    paragraph,
    table,
)
from aerobee.words import plural

CHANGES_MAX = 500
_TITLES = {
    "bytes_in": ("Written", "bytes/s"),
    "bytes_out": ("Read", "bytes/s"),
    "disk": ("Stored", "bytes"),
}


def placement_page(plan: Plan, zone: tzinfo = UTC) -> str:
    """The page. At most CHANGES_MAX changes are listed, the rest is counted."""
    brokers = sorted({*plan.before.loads, *plan.after.loads})
    parts = [
        paragraph(
            f"Plan of {moment(plan.made_at_ms, zone)}, time zone {zone}: {plural(len(plan.changes), 'topic')} to change."
        ),
        heading("Balance"),
        paragraph("Load of the most loaded broker divided by the mean; 1 is even."),
        table(
            ["resource", "before", "after"],
            [
                [cell(name), number_cell(value, 2), number_cell(plan.after.imbalance.get(name), 2)]
                for name, value in plan.before.imbalance.items()
            ],
        ),
    ]
    if plan.warnings:
        parts += [heading("Warnings"), *(paragraph(text) for text in plan.warnings)]
    if brokers:
        for number, resource in enumerate(RESOURCES):
            title, unit = _TITLES[resource]
            parts += [
                heading(f"{title}, by broker"),
                _bars(plan, brokers, number, unit, f"{title} by broker, before and after"),
            ]
    parts += [heading("Changes"), _changes(plan.changes, brokers)]
    hidden = len(plan.changes) - CHANGES_MAX
    if hidden > 0:
        parts.append(paragraph(f"Not shown: {plural(hidden, 'more topic')}."))
    return html_page("Placement plan", parts, has_figures=bool(brokers))


def _bars(plan: Plan, brokers: Sequence[str], resource: int, unit: str, name: str) -> str:
    def bars(title: str, loads: Mapping[str, Sequence[float]], colour: str) -> dict[str, Any]:
        return {
            "type": "bar",
            "name": title,
            "marker": {"color": colour},
            "x": [label(broker) for broker in brokers],
            "y": [loads[broker][resource] if broker in loads else 0 for broker in brokers],
            "hovertemplate": f"%{{x}}<br>{title}: %{{y:.3s}} {unit}<extra></extra>",
        }

    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "broker"}, "type": "category"},
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero", "tickformat": "~s"},
    }
    traces = [
        bars("before", plan.before.loads, "#9aa7b5"),
        bars("after", plan.after.loads, "#d97706"),
    ]
    return figure(traces, layout, height_px=320, name=name)


def _changes(changes: Sequence[TopicChange], brokers: Sequence[str]) -> str:
    if not changes:
        return paragraph("None: the cluster is balanced as well as it can be.")
    rows = []
    for change in changes[:CHANGES_MAX]:
        moves = [
            f"{name}: {change.before.get(name, 0)} to {change.after.get(name, 0)}"
            for name in sorted({*brokers, *change.before, *change.after})
            if change.before.get(name, 0) != change.after.get(name, 0)
        ]
        rows.append(
            [
                cell(change.topic),
                cell(", ".join(moves)),
                number_cell(100 * change.moved_keys if change.keeps_keys else 0.0),
            ]
        )
    return table(["topic", "queues at each broker", "keys that move (%)"], rows)
