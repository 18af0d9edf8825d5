"""The rules of deploy/prometheus: promtool takes them, each alert has a test in which it fires, and names series that exist."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
SETUP = "run scripts/setup-prometheus first"


def promtool(*arguments: str) -> str:
    tool = shutil.which("promtool")
    if tool is None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(SETUP)
    done = subprocess.run(
        [tool, *arguments], cwd=RULES, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules(name: str) -> list[dict[str, str]]:
    groups = yaml.safe_load((RULES / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", "recording.yml", "alerts.yml")
    promtool("check", "config", "prometheus.yml")


def test_every_alert_fires_when_it_should_and_is_silent_when_all_is_well() -> None:
    assert "SUCCESS" in promtool("test", "rules", "tests/alerts.test.yml")


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load((RULES / "tests" / "alerts.test.yml").read_text())["tests"]
    checked = [check for test in tests for check in test.get("alert_rule_test", ())]
    alerts = {rule["alert"] for rule in rules("alerts.yml")}
    assert {check["alertname"] for check in checked if check["exp_alerts"]} == alerts
    assert {check["alertname"] for check in checked if not check["exp_alerts"]} == alerts


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in rules("alerts.yml"):
        assert rule["labels"]["severity"] in ("critical", "warning")  # type: ignore[index]
        assert rule["annotations"]["summary"]  # type: ignore[index]
        assert rule["annotations"]["action"]  # type: ignore[index]


def test_every_recording_rule_gives_the_figure_worked_out_by_hand() -> None:
    assert "SUCCESS" in promtool("test", "rules", "tests/recording.test.yml")


def test_every_recording_rule_has_a_figure_worked_out_by_hand() -> None:
    tests = yaml.safe_load((RULES / "tests" / "recording.test.yml").read_text())["tests"]
    asked = [check["expr"] for test in tests for check in test["promql_expr_test"] if check["exp_samples"]]
    assert [
        rule["record"] for rule in rules("recording.yml") if not any(rule["record"] in expr for expr in asked)
    ] == []
