"""Which twin of the lane serves: the native one (package aerobee-native, built by `make native`) or the Python one.

The native one is taken when it is installed and speaks this version of the seam. AEROBEE_LANE=python or =native
forces one; a forced native lane that is not there is an error, for the operator counts on its speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from aerobee.broker.lane.core import LANE_VERSION, LaneCore, Put
from aerobee.broker.lane.pull import Got
from aerobee.errors import ConfigError
from aerobee.remoting.native_loop import NativeSockets

try:
    import aerobee_native as native
except ImportError:
    native = None

VARIABLE = "AEROBEE_LANE"
PYTHON, NATIVE = "python", "native"


class LaneTwin(Protocol):
    """What Lane uses of either twin; LaneCore (lane/core.py) explains it."""

    def burst(
        self, data: bytes | bytearray, position: int, born_host: bytes, now_ms: int
    ) -> tuple[bytes, int, bool, bytes, list[Put], list[Got]]: ...

    def forget_topics(self) -> None: ...

    def forget_grants(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """`name` is "python" or "native", `why` says in a few words why it is that one."""

    name: str
    why: str
    make: Callable[..., LaneTwin]
    make_sockets: Callable[[], NativeSockets] | None = None  # None: the event loop reads and writes


def choose_lane(wanted: str = "") -> LaneChoice:
    """Return the twin to use; `wanted` is AEROBEE_LANE. Raises ConfigError for a lane that cannot be had."""
    if wanted not in ("", PYTHON, NATIVE):
        raise ConfigError(f"{VARIABLE} is {wanted!r}: it must be {PYTHON}, {NATIVE} or empty")
    if wanted == PYTHON:
        return LaneChoice(PYTHON, f"{VARIABLE}={PYTHON}", LaneCore)
    missing = _what_is_missing(native)
    if not missing:
        why = f"{VARIABLE}={NATIVE}" if wanted else "aerobee-native is there"
        return LaneChoice(
            NATIVE, why, native.LaneCore, getattr(native, "Sockets", None)
        )  # only Linux has them
    if wanted == NATIVE:
        raise ConfigError(f"{VARIABLE} is {NATIVE}, but {missing}: run `make native`, or unset {VARIABLE}")
    return LaneChoice(PYTHON, missing, LaneCore)


def _what_is_missing(module: Any) -> str:
    """Why the native lane cannot be used; empty when it can."""
    if module is None:
        return "aerobee-native is not installed"
    version = getattr(module, "LANE_VERSION", None)
    if version != LANE_VERSION:
        return f"aerobee-native has lane version {version}, this Aerobee needs {LANE_VERSION}"
    return ""
