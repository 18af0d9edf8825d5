"""Which backend of the fast path serves, and what is said when it cannot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aerobee.broker.fastpath import choice as backend_choice
from aerobee.broker.fastpath.choice import choose_backend, make_native, wanted_backend
from aerobee.broker.fastpath.python_backend import PythonBackend
from aerobee.broker.fastpath.seam import FAST_PATH_VERSION
from aerobee.errors import ConfigError


@pytest.mark.parametrize(
    ("version", "name", "why"),
    [
        (FAST_PATH_VERSION, "native", "the native module is installed"),
        (
            FAST_PATH_VERSION + 1,
            "python",
            f"newer than this Aerobee (fast path version {FAST_PATH_VERSION + 1}, {FAST_PATH_VERSION} is needed): install",
        ),
        (None, "python", "older than this Aerobee (fast path version unknown,"),
        (FAST_PATH_VERSION - 1, "python", "run `make native` in a checkout"),
    ],
)
def test_the_native_backend_serves_when_it_has_the_same_version(
    monkeypatch: pytest.MonkeyPatch, version: int | None, name: str, why: str
) -> None:
    module = SimpleNamespace() if version is None else SimpleNamespace(FAST_PATH_VERSION=version)
    monkeypatch.setattr(backend_choice, "native", module)
    choice = choose_backend()
    assert choice.name == name
    assert why in choice.why
    assert choice.make is (make_native if name == "native" else PythonBackend)


def test_python_serves_when_nothing_is_compiled_or_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend_choice, "native", None)
    assert choose_backend().name == "python"
    assert choose_backend().why == "this installation has no native module"
    monkeypatch.setattr(backend_choice, "native", SimpleNamespace(FAST_PATH_VERSION=FAST_PATH_VERSION))
    assert choose_backend("python").make is PythonBackend


def test_a_forced_native_backend_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_choice, "native", None)
    with pytest.raises(ConfigError, match="make native"):
        choose_backend("native")
    with pytest.raises(ConfigError, match="python, native or empty"):
        choose_backend("rust")


def test_the_variables_name_of_before_is_still_read() -> None:
    assert wanted_backend({}) == ""
    assert wanted_backend({"AEROBEE_LANE": "python"}) == "python"
    assert wanted_backend({"AEROBEE_FAST_PATH": "native", "AEROBEE_LANE": "python"}) == "native"


def test_an_older_module_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.broker.fastpath.choice.native", SimpleNamespace(LANE_VERSION=5))
    choice = choose_backend("")
    assert choice.name == "python"
    assert "the installed native module is older than this Aerobee (fast path version 5" in choice.why
    with pytest.raises(ConfigError, match="older than this Aerobee"):
        choose_backend("native")
