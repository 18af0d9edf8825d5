"""`aerobee sim` without the packages of its gRPC clients."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import pytest

from aerobee.ops.commands import sim
from aerobee.simulation import drawn_settings
from tests.cli import Run, make_run


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], request: pytest.FixtureRequest) -> Run:
    return make_run(capfdbinary, request)


@pytest.fixture
def without_h2(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> ModuleSpec | None:
        return None if name == "h2" else find_spec(name)

    monkeypatch.setattr(drawn_settings, "find_spec", found)
    monkeypatch.setitem(sys.modules, "h2", None)  # to import it fails
    monkeypatch.delitem(sys.modules, "aerobee.simulation.grpc_calls", raising=False)
    monkeypatch.delitem(sys.modules, "aerobee.simulation.grpc_tasks", raising=False)


@pytest.mark.usefixtures("without_h2")
def test_seeds_run_without_grpc_clients_and_say_so(run: Run) -> None:
    code, output, error = run("sim", "--seed", "1", "--minutes", "0.02")
    assert code == 0, error
    assert output.startswith("seed 1: passed")
    assert "no gRPC clients take part" in error
    assert sim.GRPC_NEEDS in error
    assert not any(drawn_settings.drawn_settings(seed).has_grpc for seed in range(200))


@pytest.mark.usefixtures("without_h2")
def test_a_scenario_of_grpc_clients_says_what_it_needs(run: Run) -> None:
    code, _, error = run("sim", "--scenario", "grpc-clients")
    assert code != 0
    assert f"the scenario grpc-clients cannot run: {sim.GRPC_NEEDS}" in error


def test_seeds_draw_grpc_clients_with_the_packages() -> None:
    assert drawn_settings.has_grpc_packages()
    assert any(drawn_settings.drawn_settings(seed).has_grpc for seed in range(200))
