"""Outcome of one run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """One run. `failure` is empty when no invariant was violated; equal runs have an equal `digest`."""

    seed: int
    failure: str = ""
    checker: str = ""  # name of the checker that detected the failure
    simulated_s: float = 0.0
    core_s: float = 0.0  # CPU seconds
    sent: int = 0
    acknowledged: int = 0
    fault_count: int = 0  # number of scheduled faults, including skipped ones
    faults: dict[str, int] = field(default_factory=dict)
    masters: int = 0  # number of changes of master
    returns: int = 0  # number of times that a former master became master again
    # feature -> fault -> moments, see contacts.py
    met: dict[str, dict[str, int]] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    digest: str = ""
