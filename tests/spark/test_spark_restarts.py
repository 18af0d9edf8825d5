"""The short form of restart_rounds.py."""

from __future__ import annotations

from tests.spark.restart_rounds import run


def test_killed_queries_lose_and_repeat_nothing():
    counted = run(rounds=5, seed=7, rate=50)
    assert counted["messages"] > 0
    assert counted["rounds"] == 5
