"""Plans between their dry run and their execution. Core: times and tokens are arguments.

A plan is valid once, for PLAN_LIFE_MS; at most PLANS_MAX are kept, and a new one replaces the oldest. They are kept in the memory of
one process: a restart forgets them, and the dry run has to be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerobee.errors import UsageError

PLAN_LIFE_MS = 10 * 60_000
PLANS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An action with its fields, as its dry run accepted them."""

    action: str
    fields: Mapping[str, Any]
    made_ms: int


class Plans:
    """Token -> plan."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}

    def add(self, token: str, plan: Plan) -> None:
        """Keep a plan."""
        while len(self._plans) >= PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        self._plans[token] = plan

    def take(self, token: str, now_ms: int) -> Plan:
        """Remove and return a plan. Raises UsageError for an unknown, used or expired token."""
        plan = self._plans.pop(token, None)
        if plan is None:
            raise UsageError(
                "no such plan: each plan can be applied once, and is forgotten when the server restarts; repeat the dry run"
            )
        if now_ms - plan.made_ms > PLAN_LIFE_MS:
            raise UsageError(
                f"the plan is older than {PLAN_LIFE_MS // 60_000} minutes: repeat the dry run and look at its result"
            )
        return plan
