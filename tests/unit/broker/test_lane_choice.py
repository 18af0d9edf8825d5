"""Which twin of the lane serves, and what is said when it cannot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aerobee.broker.lane import choice as lane_choice
from aerobee.broker.lane.choice import choose_lane
from aerobee.broker.lane.core import LANE_VERSION, LaneCore
from aerobee.errors import ConfigError


class NativeLane:
    """Stands for the compiled class."""


@pytest.mark.parametrize(
    ("version", "name", "why"),
    [
        (LANE_VERSION, "native", "aerobee-native is there"),
        (LANE_VERSION + 1, "python", f"lane version {LANE_VERSION + 1}, this Aerobee needs {LANE_VERSION}"),
        (None, "python", "lane version None"),
    ],
)
def test_the_native_lane_serves_when_it_has_the_same_version(
    monkeypatch: pytest.MonkeyPatch, version: int | None, name: str, why: str
) -> None:
    module = SimpleNamespace(LaneCore=NativeLane) if version is None else None
    module = module or SimpleNamespace(LANE_VERSION=version, LaneCore=NativeLane)
    monkeypatch.setattr(lane_choice, "native", module)
    choice = choose_lane()
    assert choice.name == name
    assert why in choice.why
    assert choice.make is (NativeLane if name == "native" else LaneCore)


def test_python_serves_when_nothing_is_compiled_or_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_choice, "native", None)
    assert choose_lane().name == "python"
    assert choose_lane().why == "aerobee-native is not installed"
    monkeypatch.setattr(
        lane_choice, "native", SimpleNamespace(LANE_VERSION=LANE_VERSION, LaneCore=NativeLane)
    )
    assert choose_lane("python").make is LaneCore


def test_a_forced_native_lane_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_choice, "native", None)
    with pytest.raises(ConfigError, match="make native"):
        choose_lane("native")
    with pytest.raises(ConfigError, match="python, native or empty"):
        choose_lane("rust")
