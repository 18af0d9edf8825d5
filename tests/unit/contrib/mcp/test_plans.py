"""Plans are applied once, in time, and their number is bounded."""

from __future__ import annotations

import pytest

from aerobee.contrib.mcp.plans import PLAN_LIFE_MS, PLANS_MAX, Plan, Plans
from aerobee.errors import UsageError


def plan(name: str, made_ms: int = 0) -> Plan:
    return Plan(action=name, fields={}, made_ms=made_ms)


def test_a_plan_is_taken_once() -> None:
    plans = Plans()
    plans.add("token", plan("redrive"))
    assert plans.take("token", 1).action == "redrive"
    with pytest.raises(UsageError, match="no such plan"):
        plans.take("token", 1)


def test_an_old_plan_is_refused_and_forgotten() -> None:
    plans = Plans()
    plans.add("token", plan("redrive", made_ms=5))
    with pytest.raises(UsageError, match="older than 10 minutes"):
        plans.take("token", 6 + PLAN_LIFE_MS)
    with pytest.raises(UsageError, match="no such plan"):
        plans.take("token", 5)


def test_a_new_plan_replaces_the_oldest() -> None:
    plans = Plans()
    for number in range(PLANS_MAX + 1):
        plans.add(f"t{number}", plan(str(number)))
    with pytest.raises(UsageError):
        plans.take("t0", 0)
    assert plans.take("t1", 0).action == "1"
    assert plans.take(f"t{PLANS_MAX}", 0).action == str(PLANS_MAX)
