"""Outcome of one run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """One run. `failure` is empty when every promise was kept; `digest` is the same for the same run."""

    seed: int
    failure: str = ""
    checker: str = ""  # the name of the one that noticed
    simulated_s: float = 0.0
    core_s: float = 0.0  # seconds of a core
    sent: int = 0
    acknowledged: int = 0
    fault_count: int = 0  # of the schedule, with those that were left out
    faults: dict[str, int] = field(default_factory=dict)
    masters: int = 0  # number of changes of master
    returns: int = 0  # how often one became master that had been before
    met: dict[str, dict[str, int]] = field(default_factory=dict)  # feature: fault: moments, see contacts.py
    story: list[str] = field(default_factory=list)
    digest: str = ""
