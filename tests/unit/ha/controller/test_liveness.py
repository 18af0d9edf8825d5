"""Which brokers a controller takes for alive, and the leases of the masters that it grants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.ha.controller.commands import Candidate
from aerobee.ha.controller.leases import CLOCK_DRIFT_RATIO_MAX, MasterLeases
from aerobee.ha.controller.liveness import CLOSED_GRACE_MS, TIMEOUT_MS, BrokerLiveness, Heartbeat
from tests.unit.ha.controller.controller_requests import NAME, PRIORITY


def test_a_broker_is_alive_while_its_heartbeats_come_and_its_disk_is_sound() -> None:
    liveness = BrokerLiveness(0)
    liveness.beat(Heartbeat(broker_name=NAME, broker_id=1, epoch=3, max_offset=7, timeout_ms=100), 50)
    assert liveness.is_alive(NAME, 1, 149)
    assert liveness.candidates(NAME, 149) == (Candidate(1, 3, 7, PRIORITY),)
    assert not liveness.is_alive(NAME, 1, 150)
    assert liveness.forget_silent(149) == []
    assert liveness.forget_silent(150) == [(NAME, 1)]
    liveness.beat(Heartbeat(broker_name=NAME, broker_id=1, is_disk_sound=False), 200)
    assert not liveness.is_alive(NAME, 1, 200)
    assert liveness.candidates(NAME, 200) == ()


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.sampled_from(("beat", "close", "look"))))
)
def test_candidates_are_the_living_brokers_of_their_group(steps: list[tuple[str, int, str]]) -> None:
    liveness, living = BrokerLiveness(0), dict[tuple[str, int], int]()
    for now_ms, (name, broker_id, what) in enumerate(steps):
        if what == "beat":
            liveness.beat(Heartbeat(broker_name=name, broker_id=broker_id, timeout_ms=5), now_ms)
            living[name, broker_id] = now_ms
        elif what == "close":
            liveness.closed(name, broker_id, now_ms)
            living.pop((name, broker_id), None)
        else:
            gone = {key for key, at_ms in living.items() if now_ms - at_ms >= 5}
            assert set(liveness.forget_silent(now_ms)) == gone
            living = {key: at_ms for key, at_ms in living.items() if key not in gone}
        for group in "ab":
            expected = [
                each for one, each in sorted(living) if one == group and now_ms - living[one, each] < 5
            ]
            assert [each.broker_id for each in liveness.candidates(group, now_ms)] == expected


def test_silence_proves_nothing_to_a_controller_that_has_just_begun_to_lead() -> None:
    liveness = BrokerLiveness(0)
    assert not liveness.is_surely_gone(NAME, 1, TIMEOUT_MS - 1)
    assert liveness.is_surely_gone(NAME, 1, TIMEOUT_MS)
    liveness = BrokerLiveness(0)
    liveness.beat(Heartbeat(broker_name=NAME, broker_id=1), 1)
    liveness.closed(NAME, 1, 2)
    assert liveness.is_surely_gone(NAME, 1, 2), "its connection was seen to end"
    liveness.beat(Heartbeat(broker_name=NAME, broker_id=1), 3)
    assert not liveness.is_surely_gone(NAME, 1, 4)


def test_a_connection_that_ended_before_this_controller_led_may_be_made_again() -> None:
    liveness = BrokerLiveness(0)
    liveness.beat(Heartbeat(broker_name=NAME, broker_id=1), 1)
    liveness.closed(NAME, 1, 2)
    liveness.begin_leading(TIMEOUT_MS)
    assert not liveness.is_surely_gone(NAME, 1, TIMEOUT_MS + CLOSED_GRACE_MS - 1)
    assert liveness.is_surely_gone(NAME, 1, TIMEOUT_MS + CLOSED_GRACE_MS)


# -- leases


@pytest.mark.parametrize("drift", [-CLOCK_DRIFT_RATIO_MAX, 0.0, CLOCK_DRIFT_RATIO_MAX])
@pytest.mark.parametrize("other", [-CLOCK_DRIFT_RATIO_MAX, 0.0, CLOCK_DRIFT_RATIO_MAX])
def test_a_master_stops_believing_before_the_controller_does(drift: float, other: float) -> None:
    """Both count the same true time, each by a clock that is wrong by `drift` and `other`."""
    leases = MasterLeases(1_000)
    granted_ms = leases.grant(NAME, 0)
    true_end_of_master = granted_ms / (1 + drift)
    true_end_of_controller = leases.free_at_ms(NAME) / (1 + other)
    assert true_end_of_master <= true_end_of_controller + 1e-6


def test_no_lease_is_granted_while_it_is_withheld() -> None:
    leases = MasterLeases(1_000)
    leases.grant(NAME, 0)
    end = leases.free_at_ms(NAME)
    leases.withhold(NAME)
    leases.withhold(NAME)
    assert leases.grant(NAME, 500) == 0
    leases.release(NAME)
    assert leases.grant(NAME, 500) == 0
    assert leases.free_at_ms(NAME) == end
    leases.release(NAME)
    assert leases.grant(NAME, 500) == 1_000
    leases.forget_past(10_000)
    assert leases.free_at_ms(NAME) < 0


def test_a_new_leader_waits_for_what_the_one_before_granted() -> None:
    leases = MasterLeases(1_000)
    leases.begin(5_000)
    assert leases.free_at_ms("never heard of") >= 6_000
