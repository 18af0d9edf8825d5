"""What goes wrong again and again is said once."""

from __future__ import annotations

import logging

import pytest

from aerobee.log_throttle import RepeatedWarnings


def test_it_is_a_warning_when_it_is_new_and_when_it_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    throttle = RepeatedWarnings(logging.getLogger("t"))
    throttle.warn("broker-a", "refused")
    throttle.warn("broker-a", "refused")
    throttle.warn("broker-b", "refused")
    throttle.warn("broker-a", "gone")
    throttle.clear("broker-a")
    throttle.warn("broker-a", "gone")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.DEBUG] + [logging.WARNING] * 3
