"""Coverage of faults over many runs: the table of docs/simulation.md, and the pairs that must not be empty.

    python -m aerobee.simulation.coverage [RUNS [JOBS]]

runs RUNS seeds (default 1,000) in JOBS processes (default 2) and writes the table into docs/simulation.md of
the working directory. If a run fails, it prints the run and does not write the table.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from aerobee.simulation.churn import NEW_CONTROLLER, NEW_REPLICA, OTHER_KEY
from aerobee.simulation.drawn_settings import KINDS, has_grpc_packages
from aerobee.simulation.fleet import run_groups
from aerobee.simulation.outcome import Outcome
from aerobee.simulation.passing import FEATURE
from aerobee.simulation.run import groups_of, run_group
from aerobee.simulation.task import GRPC
from aerobee.simulation.traffic import Way

MINUTES = 0.02
FAILED_MAX = 20  # failures that are printed
RUNS, JOBS = 1_000, 2
BEGIN, END = "<!-- coverage: made by python -m aerobee.simulation.coverage -->", "<!-- end of coverage -->"
PAGE = Path("docs/simulation.md")
# Columns of the table, and the faults that each of them counts.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "change of master": ("change of master",),
    "by hand": ("previous master by hand", "another master by hand"),
    "kill": ("kill", "kill of the master"),
    "death in a write": ("kill at a write", "power loss at a write"),
    "power loss": ("power loss", "power loss of the master"),
    "stop, restart": ("stop of the master", "restart"),
    "pause": ("pause", "pause of the master"),
    "cut": (
        "isolation",
        "isolation of the master",
        "cut of one direction",
        "partition",
        "connections that hang",
        "slow network",
    ),
    "not copied, behind": ("unreplicated master", "replica that is left behind"),
    "disk": ("failing fsync", "full disk", "slow disk"),
    "clock": ("clock that is set",),
    "new disk": (NEW_REPLICA, NEW_CONTROLLER),
    "other key": (OTHER_KEY,),
}
TIMED = ("delay by level", "timer", "transaction")
FEATURES = (*(kind.value for kind in KINDS), *TIMED, *(way.value for way in Way), GRPC, FEATURE)
# Every feature must meet each of these faults: failovers, crashes and disk faults affect its state.
MUST_MEET = (
    "change of master",
    "by hand",
    "kill",
    "death in a write",
    "power loss",
    "stop, restart",
    "pause",
    "cut",
    "not copied, behind",
    "disk",
    "new disk",
)


def summed(outcomes: Iterable[Outcome]) -> dict[str, Counter[str]]:
    """feature or setting -> column -> number of moments in all these runs."""
    column_of = {fault: column for column, faults in COLUMNS.items() for fault in faults}
    found: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for feature, faults in outcome.met.items():
            for fault, count in faults.items():
                found.setdefault(feature, Counter())[column_of[fault]] += count
    return found


def empty_pairs(found: Mapping[str, Counter[str]]) -> list[tuple[str, str]]:
    """The pairs of a feature and a column of MUST_MEET that never met. gRPC clients take part where the extra `simulation` is installed."""
    drawn = [feature for feature in FEATURES if feature != GRPC or has_grpc_packages()]
    return [
        (feature, column)
        for feature in drawn
        for column in MUST_MEET
        if not found.get(feature, Counter())[column]
    ]


def table(found: Mapping[str, Counter[str]]) -> str:
    """As Markdown: the features, then the settings."""
    settings = sorted(found.keys() - set(FEATURES))
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name in (*FEATURES, *settings):
        counts = found.get(name, Counter())
        lines.append(f"| {name} | {' | '.join(f'{counts[column]:,}' for column in COLUMNS)} |")
    return "\n".join(lines)


def main(runs: int, jobs: int) -> None:
    """Run the seeds, and write the table into the page."""
    logging.disable(logging.CRITICAL)
    outcomes = list(
        run_groups(groups_of(range(runs)), lambda group: run_group(group, minutes=MINUTES), jobs=jobs)
    )
    failed = [f"seed {outcome.seed}: {outcome.failure}" for outcome in outcomes if outcome.failure]
    if failed:
        sys.exit("\n".join([*failed[:FAILED_MAX], f"{len(failed)} runs failed, the page stays as it is"]))
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(
        f"{before}{BEGIN}\n\nIn {runs:,} runs:\n\n{table(summed(outcomes))}\n\n{END}{after}", encoding="utf-8"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS, int(sys.argv[2]) if len(sys.argv) > 2 else JOBS)
