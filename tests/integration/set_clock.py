"""A wall clock that a test sets, and a broker on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aerobee.clock import AdvancingClock
from tests.integration.broker_calls import make_broker


class SetClock(AdvancingClock):
    """The wall clock can be set; the steady one continues. advance() is time that passes for both."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.set_by_s * 1000)


def started(path: Path, clock: SetClock, **config: Any) -> Any:
    broker = make_broker(path, **config)
    # The parts take the clock when they are made: a separate broker.
    return type(broker)(broker.config, broker._base.store_config, clock=clock)
