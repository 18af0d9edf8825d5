from __future__ import annotations

from aerobee.monitoring.health import Health


def test_a_role_is_ready_when_it_has_started_and_nothing_speaks_against_it() -> None:
    health, reason = Health("broker"), [""]
    health.check("store", lambda: reason[0])
    assert health.reasons() == {"startup": "the broker is still starting"}
    health.is_started = True
    assert health.reasons() == {}
    reason[0] = "the disk is full"
    assert health.reasons() == {"store": "the disk is full"}


def test_a_check_that_fails_is_a_reason() -> None:
    health = Health("broker")
    health.is_started = True

    def broken() -> str:
        raise RuntimeError("oops")

    health.check("broken", broken)
    health.check("fine", lambda: "")
    assert health.reasons() == {"broken": "the check failed: RuntimeError('oops')"}
