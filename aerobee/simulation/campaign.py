"""A campaign: many random runs, in chunks, over several sessions. A file has one line of JSON per completed chunk.

Chunks in the file are not repeated, so a campaign can be stopped at any time and resumed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from aerobee.errors import UsageError
from aerobee.simulation.outcome import Outcome
from aerobee.words import plural

CHUNK_RUNS = 320  # ten pairs of shared starts


@dataclass(slots=True)
class Chunk:
    """Runs of consecutive seeds, and their results."""

    first: int  # seed
    runs: int
    minutes: float
    code: str = ""  # the version, with the commit if known
    seconds: float = 0.0
    core_s: float = 0.0
    simulated_s: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    faults: int = 0
    changes: int = 0  # of master
    three_changes: int = 0  # runs with three changes of master or more
    returned: int = 0  # runs in which a former master became master again
    broken: dict[str, str] = field(default_factory=dict)  # seed: violated invariant

    def add(self, outcome: Outcome) -> None:
        """Count a run."""
        self.core_s += outcome.core_s
        self.simulated_s += outcome.simulated_s
        self.sent += outcome.sent
        self.acknowledged += outcome.acknowledged
        self.faults += outcome.fault_count
        self.changes += outcome.masters
        self.three_changes += outcome.masters >= 3
        self.returned += outcome.returns > 0
        if outcome.failure:
            self.broken[str(outcome.seed)] = outcome.failure


class Campaign:
    """The chunks of one file. Raises UsageError for a file with other content."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.chunks: list[Chunk] = []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    self.chunks.append(_parsed(line, f"{path} line {number}"))

    def left(self, seeds: range, minutes: float) -> Iterator[Chunk]:
        """Chunks of these seeds that are not in the file, in order."""
        done = {(each.first, each.runs, each.minutes) for each in self.chunks}
        for first in range(seeds.start, seeds.stop, CHUNK_RUNS):
            runs = min(CHUNK_RUNS, seeds.stop - first)
            if (first, runs, minutes) not in done:
                yield Chunk(first, runs, minutes)

    def add(self, chunk: Chunk) -> None:
        """Append a completed chunk."""
        text = json.dumps(dataclasses.asdict(chunk)) + "\n"
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(text)
        self.chunks.append(chunk)

    def summary(self) -> str:
        """One sentence about all chunks of the file."""
        runs = sum(each.runs for each in self.chunks)
        broken = sum(len(each.broken) for each in self.chunks)
        hours = sum(each.core_s for each in self.chunks) / 3600
        return (
            f"{self._path}: {runs:,} runs in {plural(len(self.chunks), 'chunk')}, {broken} broke a promise, {hours:.1f} h of a core; "
            f"{sum(each.acknowledged for each in self.chunks):,} of {sum(each.sent for each in self.chunks):,} sends "
            f"acknowledged, {sum(each.faults for each in self.chunks):,} faults, "
            f"{sum(each.changes for each in self.chunks):,} changes of master"
        )


def _parsed(line: str, where: str) -> Chunk:
    try:
        return Chunk(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{where} is no chunk of a campaign ({error}): remove the line") from error
