"""Hand-overs of several groups are not simultaneous: clients refused by one group need another."""

from __future__ import annotations

from typing import Any, cast

from aerobee.clock import ManualClock
from aerobee.ha.controller.config import ControllerConfig, LiveControllerConfig
from aerobee.ha.controller.masters import Masters
from aerobee.ha.controller.state import ControllerState


def test_a_turn_is_taken_by_one_group_at_a_time() -> None:
    clock = ManualClock()
    config = ControllerConfig(
        controller_d_leger_group="g", controller_d_leger_peers="n0-h:1", controller_d_leger_self_id="n0"
    )
    unused = cast(Any, None)
    masters = Masters(
        config=LiveControllerConfig(config), state=ControllerState(), raft=unused, client=unused, clock=clock
    )
    assert masters.wait_apart_ms("a", 5_000) == 0
    assert masters.wait_apart_ms("b", 5_000) == 5_000
    assert masters.wait_apart_ms("a", 5_000) == 0  # its own changes are no reason to wait
    clock.advance(3.0)
    assert masters.wait_apart_ms("b", 5_000) == 2_000
    clock.advance(2.0)
    assert masters.wait_apart_ms("b", 5_000) == 0
    assert masters.wait_apart_ms("a", 5_000) == 5_000
