"""More concurrent sends than a broker serves, see overload.py. The script alone judges the speed."""

from __future__ import annotations

from tests.survival import overload


def test_an_overloaded_broker_refuses_with_its_wait_and_recovers() -> None:
    figures = overload.run_all(seconds=3.0, connections=300, in_flight=64, server_name="aerobee-python")
    assert figures["replies_by_code"]["0"] > 0
    assert figures["probe_answers"] > 0
    assert figures["pulls_answered"] > 0
    assert figures["rate_after"] > 0
