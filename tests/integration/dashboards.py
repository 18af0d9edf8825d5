"""The Grafana dashboards of deploy/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDER = DEPLOY / "grafana" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
# Of what does not happen in a healthy cluster there is no series.
ABSENT = {
    "aerobee_timer_delivery_late_seconds",
    "aerobee_consumer_drain_seconds",
    "aerobee_controller_group_has_master",  # no broker here asks controllers; tests/unit/ha/controller/test_controller_families.py
}
WAIT_S = 300.0  # a group is not OK before a whole window of lag_state.py (120 s) had something to do


def boards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in FILES]
