"""The placement job's page: loads before and after, and the changes."""

from __future__ import annotations

from aerobee.placement.plan import Forecast, Plan, TopicChange
from aerobee.spark.placement_page import CHANGES_MAX, placement_page
from tests.unit.spark.pages import Elements, figures


def plan(*changes: TopicChange, warnings: tuple[str, ...] = ()) -> Plan:
    before = {"a": [300.0, 10.0, 5e9], "b": [100.0, 30.0, 1e9]}
    after = {"a": [200.0, 20.0, 3e9], "b": [200.0, 20.0, 3e9]}
    return Plan(
        made_at_ms=1_700_000_000_000,
        changes=changes,
        before=Forecast(imbalance={"bytes_in": 1.5}, broken_goals={}, loads=before),
        after=Forecast(imbalance={"bytes_in": 1.0}, broken_goals={}, loads=after),
        warnings=warnings,
    )


def test_each_resource_is_drawn_before_and_after() -> None:
    change = TopicChange(
        topic="orders", before={"a": 4}, after={"a": 2, "b": 2}, keeps_keys=True, moved_keys=0.25
    )
    text = placement_page(plan(change, warnings=("topic <x> is left alone",)))
    (written, layout), (read, _), (stored, _) = figures(text)
    assert [trace["name"] for trace in written] == ["before", "after"]
    assert [trace["y"] for trace in written] == [[300, 100], [200, 200]]
    assert [trace["y"] for trace in read] == [[10, 30], [20, 20]]
    assert [trace["y"] for trace in stored] == [[5e9, 1e9], [3e9, 3e9]]
    assert written[0]["x"] == ["a", "b"]
    assert layout["yaxis"]["title"]["text"] == "bytes/s"
    drawn = Elements(text).text
    for expected in ("1.50", "1.00", "orders", "a: 4 to 2, b: 0 to 2", "25", "topic <x> is left alone"):
        assert expected in drawn
    assert "Plan of 2023-11-14 22:13:20, time zone UTC: 1 topic to change." in drawn


def test_a_plan_without_changes_says_so() -> None:
    assert "None: the cluster is balanced as well as it can be." in Elements(placement_page(plan())).text


def test_more_changes_than_fit_are_counted() -> None:
    changes = [TopicChange(topic=f"t{n}", before={"a": 1}, after={"b": 1}) for n in range(CHANGES_MAX + 2)]
    assert "Not shown: 2 more topics." in Elements(placement_page(plan(*changes))).text
