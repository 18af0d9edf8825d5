"""What goes wrong again and again is said once."""

from __future__ import annotations

import logging

import pytest

from aerobee.client.complaints import Complaints


def test_a_complaint_is_a_warning_when_it_is_new_and_when_it_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    complaints = Complaints(logging.getLogger("t"))
    complaints.about("broker-a", "refused")
    complaints.about("broker-a", "refused")
    complaints.about("broker-b", "refused")
    complaints.about("broker-a", "gone")
    complaints.over("broker-a")
    complaints.about("broker-a", "gone")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.DEBUG] + [logging.WARNING] * 3
