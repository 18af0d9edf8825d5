"""`aerobee placement` at a real cluster: shown, tried, applied, taken back, refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from aerobee.placement.plan import Forecast, Plan, TopicChange
from aerobee.testing import ThreadedCluster
from tests.cli import Ran, make_run

EVEN = Forecast(imbalance={"bytes_in": 1.0, "queues": 1.0}, broken_goals={}, loads={})
QUICK = ("--yes", "--route-wait", "1s", "--grace", "0", "--measure", "0")


def test_a_plan_is_shown_tried_applied_and_taken_back(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], request: pytest.FixtureRequest
) -> None:
    change = TopicChange(topic="orders", before={"broker-a": 4}, after={"broker-a": 2, "broker-b": 2})
    plan = Plan(
        made_at_ms=round(time.time() * 1000), changes=(change,), before=EVEN, after=EVEN, warnings=("mind",)
    )
    path = tmp_path / "plan.json"
    path.write_bytes(plan.encode())
    with ThreadedCluster(brokers=2) as cluster:
        command = make_run(capfdbinary, request)

        def run(action: str, *more: str) -> Ran:
            return command("placement", action, str(path), *more, "-n", cluster.nameserver_address)

        with cluster.admin() as admin:
            admin.create_topic("orders", queue_count=4, broker=cluster.broker_addresses[0])
            _, shown, warned = command("placement", "show", str(path))
            assert "broker-a=2, broker-b=2" in shown
            assert "mind" in warned
            assert len(json.loads(run("apply", "--dry-run", "--json")[1])) == 7
            code, _, error = run("revert", "--yes")
            assert code == 2
            assert "nothing of this plan was applied" in error
            _, said, steps = run("apply", *QUICK)
            assert "done in 7 steps" in said
            assert "done: orders at broker-a: 2 queues are left" in steps
            assert "no steps were left" in run("apply", *QUICK)[1]
            assert "done in 7 steps" in run("revert", *QUICK)[1]
            admin.create_topic("orders", queue_count=7, broker=cluster.broker_addresses[0])
            code, _, error = run("apply", *QUICK)
            assert code == 2
            assert "7 queues to read and 7 to write at broker-a" in error


def test_what_is_no_number_is_refused_and_a_plan_with_missing_figures_is_shown(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "plan.json"
    before = Forecast(imbalance={"bytes_in": 2.0, "cpu": 1.0}, broken_goals={}, loads={})
    path.write_bytes(Plan(made_at_ms=1, changes=(), before=before, after=EVEN).encode())
    command = make_run(capfdbinary, request)
    shown = command("placement", "show", str(path))[1]
    assert [line.split() for line in shown.splitlines() if "cpu" in line or "queues" in line][:2] == [
        ["cpu", "1.00", "-"],
        ["queues", "-", "1.00"],
    ]
    for option in ("--grace", "--measure", "--max-age", "--changes-per-minute"):
        code, _, error = command("placement", "apply", str(path), "--yes", option, "nan", "-n", "127.0.0.1:1")
        assert code == 2, option
        assert "number" in error or "above 0" in error, error
    code, _, error = command("placement", "revert", str(path), "--max-age", "3")
    assert code == 2
    assert "--max-age" in error
